"""Trains cases on real ranks, with plain torch or under ddpfix."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tests.support import pool, results, scenario

RANK = Path(__file__).with_name("rank.py")
RANKS = 3
# How both DDP's reducer and the tests call what happens without ddpfix.
FAILURE = "Expected to have finished reduction in the prior iteration"
Ranks = List[pool.Record]


def comparison(model: str = "wav2vec2", **others: Any) -> Dict[str, Any]:
    """A plan for :mod:`tests.late.compared`."""
    plan = {"rate": 0.5, "optimizer": "sgd", "accum": 1, "checkpointing": "", "to_none": True, "cap": 0.01}
    return {"model": model, **plan, **others}


@dataclass
class Scenario(scenario.Scenario):
    """One training run."""

    function: str = ""  # a function of tests.late.scenarios, or ``file:function`` of a file beside it
    settings: Optional[Dict[str, str]] = None  # arguments of ``ddpfix.activate``; None is plain torch
    ddp: Dict[str, Any] = field(default_factory=dict)  # of a comparison, further keywords of DistributedDataParallel
    hook: str = ""  # of a comparison, a communication hook of torch's default_hooks, "powerSGD_hook", or ""
    comparison: Optional[Dict[str, Any]] = None  # what to train instead of it (comparison)
    environ: Dict[str, str] = field(default_factory=dict)  # environment variables of the ranks
    size: int = 2
    steps: int = 6  # of a comparison
    timeout: float = 40
    threads: bool = False  # whether autograd runs in a thread of its own
    stays: float = 0.0  # seconds that a rank that has failed waits for the others, so that each ends with its own error


def train(scenarios: Sequence[Scenario], folder: Path) -> Dict[str, Ranks]:
    """(log, record) of each rank, by scenario; None for a rank that had to be killed."""
    pool.train(RANK, [each.plan(folder) for each in scenarios], folder, RANKS, {})
    return {each.name: pool.records(folder, each.name, each.size) for each in scenarios}


def ends(ranks: Ranks) -> List[str]:
    """The error that each rank ended with, or ""."""
    return ["killed" if record is None else record["error"] or "" for _, record in ranks]


def steps(ranks: Ranks, what: str = "steps") -> List[Any]:
    """The parameters of each rank after each of its steps, or what else it has noted; none has failed."""
    assert ends(ranks) == [""] * len(ranks), ranks
    return [record[what] for _, record in ranks if record is not None]


def said(ranks: Ranks, *words: str) -> List[List[str]]:
    """The lines of each rank that have one of these words."""
    return [[line for line in results.lines(log) if any(each in line for each in words)] for log, _ in ranks]


def both(outcomes: Dict[str, Ranks], name: str) -> List[Dict[str, Any]]:
    """The records of a scenario's ranks; none failed, and all have the same parameters after each step."""
    records = []
    for log, record in outcomes[name]:
        assert record is not None and record["error"] is None, log
        records.append(record)
    assert records[0]["steps"] == records[1]["steps"]
    return records
