"""Starts the ranks of some cells under torch elastic, within a time limit, and collects and keeps what they left."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tests.gpu.cells import GROUPS, Cell
from tests.support import ranks

LOCAL = "127.0.0.1"
RANK = Path(__file__).with_name("rank.py")
# For the end of the processes, after the last cell.
_MARGIN = 6.0
# Starting ranks takes so long that less is of no use.
_LEAST = 12.0
_ENDED = "the ranks ended in it"
# What faulthandler prints when a cell takes too long.
_TIMEOUT = "Timeout (0:"


@dataclass
class Outcome:
    """What the ranks found in a cell, or why they did not: ``error`` in the cell, ``left_out`` before it."""

    cell: Cell
    found: List[Dict[str, Any]] = field(default_factory=list)
    error: str = ""
    left_out: str = ""
    seconds: float = 0.0


def environment() -> Dict[str, str]:
    """A clean environment in which the children find this checkout."""
    environ = ranks.with_release({"PYTHONUNBUFFERED": "1", "TRANSFORMERS_OFFLINE": "1"})
    # A machine without a network may have no address for its own name.
    if any(name == "lo" for _, name in socket.if_nameindex()):
        environ.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    # torch asks for it where results have to be the same bits each time.
    environ.update(CUBLAS_WORKSPACE_CONFIG=":4096:8")
    return environ


def run(cells: Sequence[Cell], cuda: bool, seconds: float) -> List[Outcome]:
    """Run cells of one group; ranks that die are started again for the cells after the one in which they died."""
    end = time.monotonic() + seconds
    outcomes: List[Outcome] = []
    waiting = list(cells)
    while waiting and end - time.monotonic() > _LEAST:
        done = _once(waiting, cuda, end - time.monotonic())
        outcomes += done
        waiting = waiting[len(done) :]
    return outcomes + [Outcome(cell, left_out="no time was left") for cell in waiting]


def _once(cells: Sequence[Cell], cuda: bool, seconds: float) -> List[Outcome]:
    """The outcomes of the first cells, up to the one in which the ranks ended."""
    backend, size = GROUPS[cells[0].group]
    with tempfile.TemporaryDirectory(prefix="ddpfix-gpu-") as name:
        folder = Path(name)
        listed = [{**asdict(cell), "number": number} for number, cell in enumerate(cells)]
        plan = {"backend": backend, "cuda": cuda, "deadline": time.time() + seconds - _MARGIN, "cells": listed}
        (folder / "plan.json").write_text(json.dumps(plan))
        command = [*ranks.elastic(size), "--local-addr", LOCAL, str(RANK), str(folder)]
        code, printed = ranks.once(command, environment(), folder, seconds)
        outcomes = [_outcome(folder, number, cell, size) for number, cell in enumerate(cells)]
    begun = [each for each in outcomes if each is not None]
    if begun and begun[-1].error == _ENDED and (code == ranks.OVERDUE or _TIMEOUT in printed):
        last, limit = begun[-1], begun[-1].cell.limit
        # What had its own time is an error; what was cut short by the end of all time is left out.
        own = last.seconds >= limit
        last.error, last.left_out = (f"not done within {limit:g} s", "") if own else ("", "no time was left to end it")
    if not begun:
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        told = ([line for line in lines if "Error" in line] or lines or [""])[-1][:200]
        begun = [Outcome(cells[0], error=f"the ranks did not start: {told}")]
    if any(each.error for each in begun):
        print(printed[-6000:], file=sys.stderr)
    return begun


def _outcome(folder: Path, number: int, cell: Cell, size: int) -> Any:
    """None for a cell that was not begun."""
    files = [folder / f"{number}.{rank}.json" for rank in range(size)]
    records = [json.loads(file.read_text()) for file in files if file.exists()]
    if not records and not (folder / f"{number}.begun").exists():
        return None
    errors = [each["error"] for each in records if each.get("error")]
    if errors:
        return Outcome(cell, error=errors[0])
    if len(records) < size:
        return Outcome(cell, error=_ENDED, seconds=time.time() - (folder / f"{number}.begun").stat().st_mtime)
    left_out = records[0].get("left_out", "")
    seconds = max(each.get("seconds", 0.0) for each in records)
    return Outcome(cell, [] if left_out else [each["found"] for each in records], "", left_out, seconds)


class Kept:
    """What cells have found, in a file, so that the next call goes on where this one has stopped; None keeps nothing.

    A result counts on the machine, with the releases, and for the state of ddpfix that it was found with.
    """

    def __init__(self, file: Optional[Path], machine: Dict[str, Any]) -> None:
        self._file, self._machine = file, [source(), machine]
        self._all: Dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}

    def _key(self, cell: Cell) -> str:
        known = {name: value for name, value in asdict(cell).items() if name not in ("limit", "least")}
        return json.dumps([self._machine, known], sort_keys=True)

    def of(self, cell: Cell) -> Optional[Outcome]:
        """What a cell has found, or the error that it ended with, in an earlier call."""
        found = self._all.get(self._key(cell))
        return None if found is None else Outcome(cell, **found)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Keep what has run, as a whole or not at all."""
        for each in outcomes:
            if not each.left_out:
                self._all[self._key(each.cell)] = {name: getattr(each, name) for name in ("found", "error", "seconds")}
        if self._file is not None:
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps(self._all, indent=1))
            part.replace(self._file)


def source() -> str:
    """Tells one state of ddpfix from another."""
    whole = hashlib.sha256()
    files = sorted(file for folder in ("ddpfix", "patches") for file in (ranks.ROOT / folder).rglob("*.py"))
    for file in [*files, ranks.ROOT / "compat_matrix.yaml"]:
        whole.update(str(file.relative_to(ranks.ROOT)).encode() + file.read_bytes())
    return whole.hexdigest()[:12]
