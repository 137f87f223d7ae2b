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


@dataclass
class Scenario(scenario.Scenario):
    """One training run."""

    function: str = ""  # of tests.late.scenarios, or ``file:function`` of a file beside it or of a dotted name
    given: Dict[str, Any] = field(default_factory=dict)  # further keywords of it
    settings: Optional[Dict[str, str]] = None  # arguments of ``ddpfix.activate``; None is plain torch
    environ: Dict[str, str] = field(default_factory=dict)  # environment variables of the ranks
    size: int = 2
    timeout: float = 40
    patience: float = 8  # seconds that a collective waits
    threads: bool = False  # whether autograd runs in a thread of its own
    stays: float = 0.0  # seconds that a rank that has failed waits for the others, so that each ends with its own error


def train(scenarios: Sequence[Scenario], folder: Path, of: int = RANKS) -> Dict[str, Ranks]:
    """(log, record) of each rank, by scenario; None for a rank that had to be killed."""
    pool.train(RANK, [each.plan(folder) for each in scenarios], folder, of, {})
    return {each.name: pool.records(folder, each.name, each.size) for each in scenarios}


class Outcomes(Dict[str, Ranks]):
    """What is left of scenarios, by name; each is run when a test first asks for it."""

    def __init__(self, scenarios: Sequence[Scenario], folder: Path) -> None:
        super().__init__()
        self.scenarios, self.folder = {each.name: each for each in scenarios}, folder
        assert len(self.scenarios) == len(scenarios), "two scenarios have one name"

    def __missing__(self, name: str) -> Ranks:
        self.update(train([self.scenarios[name]], self.folder))
        return self[name]


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
    one, other = steps(outcomes[name])
    assert one == other
    return [record for _, record in outcomes[name] if record is not None]
