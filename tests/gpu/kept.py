"""What cells have found is kept in a file, so that the next call goes on where this one has stopped.

A result counts on the machine, with the releases, and for the state of ddpfix that it was found with.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from tests.gpu.cells import Cell
from tests.gpu.launch import Outcome
from tests.support.ranks import ROOT

_MACHINE = (
    "device",
    "devices",
    "driver",
    "cuda_version",
    "nccl",
    "torch",
    "python",
    "transformers",
    "funasr",
    "triton",
)


class Kept:
    """The results of one machine.

    Args:
        file: None keeps nothing.
        machine: its facts.
    """

    def __init__(self, file: Optional[Path], machine: Dict[str, Any]) -> None:
        self._file = file
        self._machine = json.dumps([source(), *(machine[name] for name in _MACHINE)])
        self._all: Dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}

    def _key(self, cell: Cell) -> str:
        known = {name: value for name, value in asdict(cell).items() if name not in ("limit", "least")}
        return json.dumps([self._machine, known], sort_keys=True)

    def of(self, cell: Cell) -> Optional[Outcome]:
        """What a cell has found, or the error that it ended with, in an earlier call."""
        found = self._all.get(self._key(cell))
        return None if found is None else Outcome(cell, found["found"], found["error"], "", found["seconds"])

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Keep what has run, as a whole or not at all."""
        for each in outcomes:
            if not each.left_out:
                values = {"found": each.found, "error": each.error, "seconds": each.seconds}
                self._all[self._key(each.cell)] = values
        if self._file is not None:
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps(self._all, indent=1))
            part.replace(self._file)


def source() -> str:
    """Tells one state of ddpfix from another."""
    whole = hashlib.sha256()
    for folder in ("ddpfix", "patches"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            whole.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    whole.update((ROOT / "compat_matrix.yaml").read_bytes())
    return whole.hexdigest()[:12]
