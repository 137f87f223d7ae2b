"""Trains sharded models on two or four real ranks, unpatched or under ddpfix."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from tests.late import launch
from tests.late.launch import Ranks, Scenario


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


def scenario(name: str, plans: Sequence[Plan], settings: Optional[Dict[str, str]] = None, **others: Any) -> Scenario:
    """Plans that are run one after the other by one process a rank."""
    given = {"plans": [asdict(each) for each in plans]}
    others = {"timeout": 300, "patience": 20, **others}
    return Scenario(name, "tests.sharded.training:run", given, settings, **others)


def train(scenarios: Sequence[Scenario], folder: Path) -> Dict[str, Ranks]:
    """(log, records by plan) of each rank, by scenario."""
    return launch.train(scenarios, folder, of=4)
