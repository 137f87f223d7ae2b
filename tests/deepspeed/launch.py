"""Trains models in DeepSpeed's engine on two real ranks, unpatched or under ddpfix."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from tests.support import pool, scenario

RANK = Path(__file__).with_name("rank.py")
RANKS = 2
# DeepSpeed on a machine without an accelerator, and no kernel that it would have to compile.
ENVIRON = {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}


@dataclass
class Scenario(scenario.Scenario):
    """One training run beside a reference that has no DeepSpeed, no LayerDrop and no ddpfix.

    Attributes:
        stage: of ZeRO, 0 to 3.
        model: a name of :func:`tests.deepspeed.models.named`.
        optimizer: "sgd" or "adamw", both with weight decay.
        accum: micro-batches a step.
        checkpointing: "" or "layers" or "layers-reentrant" (the toolkit's own).
        evaluated: whether the model is evaluated before each step, on one rank once more than on the other.
        looks: whether the first rank runs one forward alone before all train.
        loop: "plain", or "trainer" (of transformers).
        grouped: whether DeepSpeed is told of groups (an ``mpu``).
        told: whether transformers knows of ZeRO 3, as its Trainer tells it.
        equal: whether the ranks draw the same numbers, as programs do that set one seed on all ranks.
        more: settings of DeepSpeed beside these.
        settings: arguments of ``ddpfix.activate``; None is the unpatched toolkit.
        environ: environment variables of the ranks.
    """

    stage: int = 1
    model: str = "bart"
    rate: float = 0.5
    optimizer: str = "adamw"
    accum: int = 1
    checkpointing: str = ""
    evaluated: bool = False
    looks: bool = False
    loop: str = "plain"
    grouped: bool = False
    told: bool = False
    equal: bool = False
    more: Dict[str, Any] = field(default_factory=dict)
    settings: Optional[Dict[str, str]] = None
    environ: Dict[str, str] = field(default_factory=dict)
    steps: int = 5
    timeout: float = 120


def train(scenarios: Sequence[Scenario], folder: Path) -> Dict[str, List[pool.Record]]:
    """(log, record) of each rank, by scenario; no record of a rank that had to be killed."""
    pool.train(RANK, [each.plan(folder) for each in scenarios], folder, RANKS, ENVIRON)
    return {each.name: pool.records(folder, each.name, RANKS) for each in scenarios}
