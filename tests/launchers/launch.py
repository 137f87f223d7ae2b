"""Starts the ranks of a launcher, on one host or on two, and reads what they left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from tests.support import hosts, ranks

PROGRAM = Path(__file__).with_name("program.py")
REDUCTION = "Expected to have finished reduction in the prior iteration"
ON = {"DDPFIX": "1"}
# The unfinished reduction of the first step keeps any other collective from being compared.
UNPATCHED = {"DDPFIX": "0", "TEST_STOCK": "1"}


@dataclass
class Job:
    """How a job ended, and what its ranks left.

    Attributes:
        code: of the launcher, or the worst of several.
        output: all that was printed.
        records: what each rank left, by attempt, in the order of ranks.
    """

    code: int
    output: str
    records: Dict[int, List[Dict[str, Any]]]

    def of(self, size: int, attempt: int = 0) -> List[Dict[str, Any]]:
        """The records of all ranks of one attempt; fails with the output if there are not ``size``."""
        found = self.records.get(attempt, [])
        assert len(found) == size, self.output[-8000:]
        return found


def check(records: Sequence[Dict[str, Any]]) -> None:
    """All ranks active, with the same patches; the same layers skipped; gradients as without ddpfix."""
    for one in records:
        assert "error" not in one, one["error"]
        assert one["active"] and one["world"] == len(records), one
        assert one["patches"] and one["patches"] == records[0]["patches"]
        assert one["skipped"] == records[0]["skipped"], "ranks skipped different layers"
        assert all(one["equal"]), "parameters differ between ranks"
        assert len(one["errors"]) == len(one["skipped"]) and max(one["errors"]) < 2e-7, one["errors"]
    assert any(records[0]["skipped"]) and len(set(map(tuple, records[0]["skipped"]))) > 1


def check_unpatched(records: Sequence[Dict[str, Any]]) -> None:
    """DDP ends on a rank; the other may only notice that this one is gone."""
    assert not any(one["active"] for one in records)
    assert any(REDUCTION in one.get("error", "") for one in records), records


def run(words: Sequence[str], folder: Path, environ: Mapping[str, str], limit: float = 180) -> Job:
    """Run a launcher's command to its end; the ranks leave their records in the folder."""
    code, output = ranks.run(list(words), environment(environ), folder, limit)
    return Job(code, output, left(folder))


def run_on_both(
    commands: Sequence[Tuple[hosts.Host, Sequence[str], Mapping[str, str]]], folder: Path, limit: float = 180
) -> Job:
    """Run one launcher a host at the same time; none is left when this returns."""
    screens = [folder / f"{host.name}.{index}.log" for index, (host, _, _) in enumerate(commands)]
    children = []
    try:
        for screen, (host, words, environ) in zip(screens, commands):
            with screen.open("w") as file:
                child = subprocess.Popen(
                    host.command(words, folder),
                    env=environment(environ),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            children.append(child)
        codes = [_ended(child, limit) for child in children]
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    output = "".join(f"== {screen.stem}\n{screen.read_text(errors='replace')}" for screen in screens)
    return Job(max(codes, key=abs), output, left(folder))


def _ended(child: Any, limit: float) -> int:
    try:
        return int(child.wait(limit))
    except subprocess.TimeoutExpired:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(40)
        return ranks.OVERDUE


def environment(more: Mapping[str, str]) -> Dict[str, str]:
    """A clean environment for a launcher: without the variables of one in which the tests may run themselves."""
    steering = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    found = {name: value for name, value in ranks.environment().items() if not name.startswith(steering)}
    # Scripts beside the interpreter are those of its environment.
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", os.defpath)])
    return {**found, **more}


def left(folder: Path) -> Dict[int, List[Dict[str, Any]]]:
    """The records in a folder, by attempt."""
    found: Dict[int, List[Dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.*.json"), key=lambda file: int(file.name.partition(".")[0])):
        attempt = int(file.name.split(".")[1])
        found.setdefault(attempt, []).append(json.loads(file.read_text(encoding="utf-8")))
    return found
