"""Trains the classes of a file on two real ranks, with plain torch or under ddpfix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tests.support import pool, scenario

RANK = Path(__file__).with_name("rank.py")


@dataclass
class Scenario(scenario.Scenario):
    """One run.

    Attributes:
        settings: arguments of ``ddpfix.activate``; None is plain torch.
    """

    file: str = "shapes"
    settings: Optional[Dict[str, str]] = None
    steps: int = 8
    wrapper: str = "ddp"
    only: Sequence[str] = ()
    timeout: float = 120


def train(scenarios: List[Scenario], folder: Path) -> Dict[str, List[Dict[str, Any]]]:
    """What each rank found, by scenario; none failed."""
    pool.train(RANK, [each.plan(folder) for each in scenarios], folder, 2, {})
    found: Dict[str, List[Dict[str, Any]]] = {}
    for each in scenarios:
        for log, record in pool.records(folder, each.name, 2):
            assert record is not None and record["error"] is None, log
            found.setdefault(each.name, []).append(record)
    return found
