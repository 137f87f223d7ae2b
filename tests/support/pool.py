"""Ranks that have imported a toolkit once and run scenarios on request: the side of the tests.

Importing a toolkit takes longer than training a tiny model with it. So ranks of one kind are forked once from a
process that has imported all, and each scenario runs in a forked child of every rank (:mod:`tests.support.serving`).
"""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type

from tests.support import ranks
from tests.support.results import R
from tests.support.scenario import Scenario

# What a rank printed and what it recorded; no record where it had to be killed.
Record = Tuple[str, Optional[Dict[str, Any]]]
_KINDS: Dict[Tuple[Any, ...], Pool] = {}


class Pool:
    """``size`` ranks that run ``script`` and wait for requests, until the tests end."""

    def __init__(self, script: Path, size: int, environ: Tuple[Tuple[str, str], ...]) -> None:
        self.size, self.number = size, 0
        self.folder = Path(tempfile.mkdtemp(prefix="ddpfix-ranks-"))
        self.screen = (self.folder / "screen").open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(self.folder)],
            env=ranks.with_release({**dict(environ), "WORLD_SIZE": str(size)}),
            stdout=self.screen,
            stderr=subprocess.STDOUT,
        )

    def send(self, request: Dict[str, Any], limit: float) -> None:
        """Have a request served; fails with what the ranks printed if they die, or do not end within the limit."""
        number, self.number = self.number, self.number + 1
        new = self.folder / "new"
        new.write_text(json.dumps(request))
        new.rename(self.folder / f"request.{number}")
        end = time.monotonic() + limit
        while not all((self.folder / f"done.{number}.{rank}").exists() for rank in range(self.size)):
            assert self.process.poll() is None and time.monotonic() < end, self.printed()
            time.sleep(0.05)

    def printed(self) -> str:
        return (self.folder / "screen").read_text(errors="replace")[-6000:]

    def close(self) -> None:
        (self.folder / "stop").touch()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(40)
        self.screen.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def close() -> None:
    """End all ranks that wait, when the tests end: workers of pytest-xdist do not run the functions of atexit."""
    while _KINDS:
        _KINDS.popitem()[1].close()


atexit.register(close)


def results(
    script: Path, scenarios: Sequence[Scenario], folder: Path, size: int, environ: Dict[str, str], kind: Type[R]
) -> Dict[str, List[R]]:
    """Run scenarios (:func:`train`) and return the results of this kind by name, in the order of ranks."""
    train(script, [scenario.plan(folder) for scenario in scenarios], folder, size, environ)
    return {scenario.name: of_ranks(folder, scenario.name, size, kind) for scenario in scenarios}


def of_ranks(folder: Path, name: str, size: int, kind: Type[R]) -> List[R]:
    """What each rank left of one scenario."""
    left = enumerate(records(folder, name, size))
    return [kind.of(log, record, folder / f"{name}.{rank}.pt") for rank, (log, record) in left]


def train(script: Path, plans: Sequence[Dict[str, Any]], folder: Path, size: int, environ: Dict[str, str]) -> None:
    """Run scenarios one after the other on ``size`` ranks of a kind (script, size, environment).

    A plan has a ``name`` and a ``timeout`` in seconds. Ranks leave ``<name>.<rank>.json`` and ``.log`` in the folder,
    where what earlier runs left is removed. The script ends in :func:`tests.support.serving.serve`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for plan in plans:
        # The toolkits resume from what they find, and an old record would hide that a rank hangs now.
        shutil.rmtree(folder / plan["name"], ignore_errors=True)
        for old in folder.glob(f"{plan['name']}.*.*"):
            old.unlink()
    for old in [*folder.glob("at.*"), *folder.glob("port.*")]:
        old.unlink()
    key = (script, size, tuple(sorted(environ.items())))
    if key not in _KINDS:
        _KINDS[key] = Pool(*key)
    limit = 120 + sum(plan["timeout"] for plan in plans)
    _KINDS[key].send({"folder": str(folder), "scenarios": list(plans)}, limit)


def records(folder: Path, name: str, size: int) -> List[Record]:
    """(log, record) of each rank for one scenario; the record is None where the rank had to be killed."""
    found = []
    for rank in range(size):
        log, record = folder / f"{name}.{rank}.log", folder / f"{name}.{rank}.json"
        text = log.read_text(errors="replace") if log.exists() else ""
        found.append((text, json.loads(record.read_text()) if record.exists() else None))
    return found
