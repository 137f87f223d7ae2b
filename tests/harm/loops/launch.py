"""Runs programs on real ranks, in plain torch and under ddpfix."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Sequence

from tests.harm.loops import source
from tests.harm.loops.kit import BY_HAND
from tests.harm.loops.plan import Plan
from tests.support import pool

RANK = Path(__file__).with_name("rank.py")
# What each kind of process trains a program as.
MODES: Dict[str, Sequence[str]] = {"plain": [*BY_HAND, "ddp"], "ddpfix": ["ddp"]}
# Seconds until ranks that do not end are killed.
LIMIT = 40.0
ABORTED = "the process was ended by a signal"


@dataclass
class Run:
    """How a program ended on each rank of one kind of process."""

    records: List[Dict[str, Any]]  # by rank, then by mode
    logs: List[str]  # by rank, what it printed
    killed: bool  # whether ranks had to be killed


def train(plans: Sequence[Plan], folder: Path) -> List[Dict[str, Run]]:
    """Run programs in plain torch, with gradients averaged by hand, and under ddpfix: a dict of each, by kind."""
    with ThreadPoolExecutor(len(MODES)) as threads:
        kinds = dict(zip(MODES, threads.map(lambda kind: _of_kind(kind, plans, folder / kind), MODES)))
    return [{kind: runs[number] for kind, runs in kinds.items()} for number in range(len(plans))]


def _of_kind(kind: str, plans: Sequence[Plan], folder: Path) -> List[Run]:
    folder.mkdir(parents=True, exist_ok=True)
    requests = []
    for plan in plans:
        file = folder / f"loop_{plan.seed}.py"
        file.write_text(source.text(plan))
        request = {"name": f"loop{plan.seed}", "file": str(file), "seed": plan.seed, "modes": MODES[kind]}
        requests.append({**request, "size": plan.ranks, "timeout": LIMIT, "stays": 2.0})
    pool.train(RANK, requests, folder, plans[0].ranks, {"DDPFIX": "1"} if kind == "ddpfix" else {})
    return [_read(f"loop{plan.seed}", plan.ranks, folder) for plan in plans]


def _read(name: str, size: int, folder: Path) -> Run:
    run = Run([], [], False)
    for rank, (log, record) in enumerate(pool.records(folder, name, size)):
        kept = folder / f"{name}.{rank}.kept"
        if record is None and kept.exists():
            # gloo has ended it; one that had to be killed has printed where it waited.
            run.killed = run.killed or "(most recent call first)" in log
            record = json.loads(kept.read_text())
            record[list(record)[-1]]["error"] = ABORTED
        run.records.append(
            {} if record is None else {mode: each for mode, each in record.items() if isinstance(each, dict)}
        )
        run.killed = run.killed or record is None
        run.logs.append(log)
    return run
