"""Runs programs on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence

from tests.late.loops import kinds
from tests.late.loops.loop import OURS
from tests.support import pool

RANK = Path(__file__).with_name("rank.py")
RANKS = 3
Ranks = List[pool.Record]


def scenarios(
    names: Sequence[str], modes: Sequence[str], sizes: Sequence[int], threads: bool = False
) -> List[Dict[str, Any]]:
    """The runs of these programs, each beside its reference; ``threads``: autograd runs in a thread of its own."""
    known = kinds.load()
    runs = [
        {"name": f"{name}-{mode}-{size}", "kind": name, "mode": mode, "size": size, "timeout": known[name].timeout}
        for name in names
        for size in sizes
        if size == 2 or known[name].three
        for mode in modes
    ]
    return [{**run, "threads": threads, "lingers": 1.5} for run in runs]


def train(chosen: Sequence[Dict[str, Any]], folder: Path) -> Dict[str, Ranks]:
    """(log, record) of each rank, by the name of the run; the record is None where the rank had to be killed."""
    for mode in ("", *OURS):
        plans = [each for each in chosen if (each["mode"] if each["mode"] in OURS else "") == mode]
        if plans:
            # Ranks that train in plain torch have never imported ddpfix.
            pool.train(RANK, plans, folder, RANKS, {"LOOPS_MODE": mode} if mode else {})
    return {each["name"]: pool.records(folder, each["name"], each["size"]) for each in chosen}
