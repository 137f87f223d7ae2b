"""Trains models in DeepSpeed's engine on two real ranks, unpatched or under ddpfix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from tests.support import pool, scenario

RANK = Path(__file__).with_name("rank.py")
RANKS = 2
# DeepSpeed on a machine without an accelerator, and no kernel that it would have to compile.
ENVIRON = {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}


@dataclass
class Scenario(scenario.Scenario):
    """One training run beside a reference that has no DeepSpeed, no LayerDrop and no ddpfix."""

    stage: int = 1  # of ZeRO, 0 to 3
    model: str = "bart"  # "own", or an entry of the zoo
    rate: float = 0.5
    accum: int = 1  # micro-batches a step
    reentrant: bool = False  # whether layers are checkpointed
    evaluated: bool = False  # whether the model is evaluated before each step, on one rank once more than on the other
    looks: bool = False  # whether the first rank runs one forward alone before all train
    grouped: bool = False  # whether DeepSpeed is told of groups (an ``mpu``)
    told: bool = False  # whether transformers knows of ZeRO 3, as its Trainer tells it
    equal: bool = False  # whether the ranks draw the same numbers, as programs do that set one seed on all ranks
    layerdrop: Optional[str] = None  # of ``ddpfix.activate``; None is the unpatched toolkit
    steps: int = 5
    timeout: float = 120


def train(scenarios: Sequence[Scenario], folder: Path) -> Dict[str, List[pool.Record]]:
    """(log, record) of each rank, by scenario; no record of a rank that had to be killed."""
    pool.train(RANK, [each.plan(folder) for each in scenarios], folder, RANKS, ENVIRON)
    return {each.name: pool.records(folder, each.name, RANKS) for each in scenarios}
