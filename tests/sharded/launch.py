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
    """One training run beside a reference that has no FSDP, no LayerDrop and no ddpfix."""

    name: str  # the key of its outcome
    kind: str = "fsdp2"  # how the model is sharded, a key of tests.sharded.wraps.KINDS
    # An entry of the zoo; "" trains every one that asks whether it is sharded, and outcomes go by their names.
    model: str = "wav2vec2"
    rate: float = 0.5
    # "", "layers" or "layers-reentrant" (the toolkit's own), or "encoder" (a user's, around it all).
    checkpointing: str = ""
    optimizer: str = "adamw"  # "sgd" or "adamw", both with weight decay
    accum: int = 1  # micro-batches a step
    evaluated: bool = False  # whether the model is evaluated before each step
    steps: int = 5


@dataclass
class Scenario(scenario.Scenario):
    """Plans that are run one after the other by one process a rank."""

    plans: List[Plan]
    settings: Optional[Dict[str, str]] = None  # arguments of ``ddpfix.activate``; None is the unpatched toolkit
    environ: Dict[str, str] = field(default_factory=dict)  # environment variables of the ranks
    size: int = 2  # the world size
    timeout: float = 300


def train(scenarios: Sequence[Scenario], folder: Path) -> Dict[str, List[pool.Record]]:
    """(log, records by plan) of each rank, by scenario."""
    pool.train(RANK, [each.plan(folder) for each in scenarios], folder, RANKS, {})
    return {each.name: pool.records(folder, each.name, each.size) for each in scenarios}
