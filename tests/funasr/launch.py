"""Runs FunASR's own training entries on two real ranks, stock or under ddpfix, and collects what the ranks saw."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tests.ranks import launch as ranks

RANK = Path(__file__).with_name("rank.py")


@dataclass
class Scenario:
    """One training run.

    Attributes:
        name: how its outcome is asked for.
        config: path of the configuration (see :mod:`tests.funasr.recipes`).
        entry: ``train`` or ``train_ds``.
        overrides: hydra overrides, as on a user's command line.
        settings: arguments of ``ddpfix.activate`` in the child; in a stock launch they switch ddpfix on, late.
        before: Python code run just before the entry (the maintainers' edits, for reference runs).
        timeout: seconds after which a hanging run is ended.
        keep: whether the final parameters are kept (``Result.parameters``).
        script: another path of the entry than that of the installed release.
        environ: environment variables.
    """

    name: str
    config: Path
    entry: str = "train"
    overrides: Sequence[str] = ()
    settings: Dict[str, str] = field(default_factory=dict)
    before: str = ""
    timeout: float = 60
    keep: bool = False
    script: Optional[Path] = None
    environ: Dict[str, str] = field(default_factory=dict)

    def plan(self, package: Path, folder: Path) -> Dict[str, Any]:
        script = self.script or package / "bin" / f"{self.entry}.py"
        arguments = [f"--config-path={self.config.parent}", f"--config-name={self.config.name}"]
        arguments += [f"++output_dir={folder / self.name}", f"hydra.run.dir={folder}", "hydra.output_subdir=null"]
        found = {name: getattr(self, name) for name in ("name", "settings", "before", "timeout", "keep", "environ")}
        return {**found, "script": str(script), "arguments": [*arguments, *self.overrides]}


@dataclass
class Result:
    """What one rank saw of one scenario; ``hung`` if it had to be killed (nothing was recorded then)."""

    log: str
    hung: bool
    error: Optional[str] = None
    ddp: List[Dict[str, Any]] = field(default_factory=list)
    batches: List[Dict[str, Any]] = field(default_factory=list)
    steps: List[str] = field(default_factory=list)
    lr: List[float] = field(default_factory=list)
    parameters: Optional[Path] = None
    notes: Dict[str, Any] = field(default_factory=dict)

    @property
    def training(self) -> List[Dict[str, Any]]:
        return [batch for batch in self.batches if batch["training"]]


def package() -> Path:
    """The folder of the installed release, without importing it."""
    from importlib.util import find_spec

    spec = find_spec("funasr")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def version() -> str:
    """The installed release."""
    return (package() / "version.txt").read_text().strip()


def train(
    scenarios: Sequence[Scenario],
    folder: Path,
    ddpfix: bool,
    size: int = 2,
    environ: Optional[Dict[str, str]] = None,
    stand_in: Optional[bool] = None,
) -> Dict[str, List[Result]]:
    """Run scenarios one after the other on ``size`` ranks; returns the results by name, in the order of ranks.

    Importing FunASR takes longer than training: ranks of the same kind are started once, and serve all tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for scenario in scenarios:
        # FunASR resumes from what it finds in its output folder.
        shutil.rmtree(folder / scenario.name, ignore_errors=True)
        # The record of an earlier run would hide that a rank hangs now.
        for old in folder.glob(f"{scenario.name}.*.*"):
            old.unlink()
    for old in [*folder.glob("at.*"), *folder.glob("port.*")]:
        old.unlink()
    plans = [scenario.plan(package(), folder) for scenario in scenarios]
    limit = 120 + sum(scenario.timeout for scenario in scenarios)
    key = (ddpfix, not ddpfix if stand_in is None else stand_in, size, tuple(sorted((environ or {}).items())))
    if key not in _RANKS:
        _RANKS[key] = _Ranks(*key)
    _RANKS[key].ask({"folder": str(folder), "scenarios": plans}, limit)
    return {scenario.name: [_result(folder, scenario.name, rank) for rank in range(size)] for scenario in scenarios}


class _Ranks:
    """Ranks that have imported FunASR and wait for requests, until the tests end."""

    def __init__(self, ddpfix: bool, stand_in: bool, size: int, environ: Tuple[Tuple[str, str], ...]) -> None:
        self.size, self.number = size, 0
        self.folder = Path(tempfile.mkdtemp(prefix="ddpfix-ranks-"))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(size)]
        more = {"DDPFIX": "1"} if ddpfix else {}
        whole = ranks.environment({**more, **dict(environ), "TEST_STAND_IN": str(int(stand_in))})
        whole["PYTHONPATH"] = os.pathsep.join([whole["PYTHONPATH"], str(package().parent)])
        self.screen = (self.folder / "screen").open("w")
        self.process = subprocess.Popen(
            [*command, str(RANK), str(self.folder)], env=whole, stdout=self.screen, stderr=subprocess.STDOUT
        )
        atexit.register(self.close)

    def ask(self, request: Dict[str, Any], limit: float) -> None:
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
            # torch elastic gives its workers sessions of their own, and ends them when it is asked to end.
            self.process.terminate()
            self.process.wait(40)
        self.screen.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_RANKS: Dict[Tuple[Any, ...], _Ranks] = {}


def _result(folder: Path, name: str, rank: int) -> Result:
    log = folder / f"{name}.{rank}.log"
    record = folder / f"{name}.{rank}.json"
    text = log.read_text(errors="replace") if log.exists() else ""
    if not record.exists():
        return Result(text, hung=True)
    found = json.loads(record.read_text())
    known = {key: found.pop(key) for key in ("error", "ddp", "batches", "steps", "lr") if key in found}
    kept = record.with_suffix(".pt")
    return Result(text, False, parameters=kept if kept.exists() else None, notes=found, **known)
