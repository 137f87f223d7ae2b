"""Trains sharded models on two or four real ranks, unpatched or under ddpfix."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from tests.support import pool, scenario

RANK = Path(__file__).with_name("rank.py")
RANKS = 4


@dataclass
class Plan:
    """One training run beside a reference that has no FSDP, no LayerDrop and no ddpfix.

    Attributes:
        name: the key of its outcome.
        kind: how the model is sharded, a key of :data:`tests.sharded.wraps.KINDS`.
        model: an entry of the zoo; "" trains every one that asks whether it is sharded, and outcomes go by their names.
        checkpointing: "", "layers" or "layers-reentrant" (the toolkit's own), or "encoder" (a user's, around it all).
        optimizer: "sgd" or "adamw", both with weight decay.
        accum: micro-batches a step.
        evaluated: whether the model is evaluated before each step.
    """

    name: str
    kind: str = "fsdp2"
    model: str = "wav2vec2"
    rate: float = 0.5
    checkpointing: str = ""
    optimizer: str = "adamw"
    accum: int = 1
    evaluated: bool = False
    steps: int = 5


@dataclass
class Scenario(scenario.Scenario):
    """Plans that are run one after the other by one process a rank.

    Attributes:
        settings: arguments of ``ddpfix.activate``; None is the unpatched toolkit.
        environ: environment variables of the ranks.
        size: the world size.
    """

    plans: List[Plan]
    settings: Optional[Dict[str, str]] = None
    environ: Dict[str, str] = field(default_factory=dict)
    size: int = 2
    timeout: float = 300


def train(scenarios: Sequence[Scenario], folder: Path) -> Dict[str, List[pool.Record]]:
    """(log, records by plan) of each rank, by scenario."""
    pool.train(RANK, [each.plan(folder) for each in scenarios], folder, RANKS, {})
    return {each.name: pool.records(folder, each.name, each.size) for each in scenarios}
