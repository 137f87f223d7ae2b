"""Runs programs on real ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Sequence

from tests.late.loops import kinds
from tests.late.loops.loop import OURS
from tests.support import pool

RANK = Path(__file__).with_name("rank.py")
RANKS = 3
Ranks = List[pool.Record]


@dataclass
class Scenario:
    """One run of one program."""

    kind: str
    mode: str
    size: int
    threads: bool = False  # whether autograd runs in a thread of its own

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.mode}-{self.size}"


def scenarios(
    names: Sequence[str], modes: Sequence[str], sizes: Sequence[int], threads: bool = False
) -> List[Scenario]:
    """The runs of these programs, each beside its reference."""
    known = kinds.load()
    return [
        Scenario(name, mode, size, threads)
        for name in names
        for size in sizes
        if size == 2 or known[name].three
        for mode in modes
    ]


def train(chosen: Sequence[Scenario], folder: Path) -> Dict[str, Ranks]:
    """(log, record) of each rank, by the name of the run; the record is None where the rank had to be killed."""
    known = kinds.load()
    for mode in ("", *OURS):
        some = [each for each in chosen if (each.mode if each.mode in OURS else "") == mode]
        plans = [{**asdict(each), "name": each.name, "timeout": known[each.kind].timeout} for each in some]
        if plans:
            # Ranks that train in plain torch have never imported ddpfix.
            pool.train(RANK, plans, folder, RANKS, {"LOOPS_MODE": mode} if mode else {})
    return {each.name: pool.records(folder, each.name, each.size) for each in chosen}
