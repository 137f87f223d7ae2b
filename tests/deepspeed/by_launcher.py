"""DeepSpeed's engine under a launcher, recorded as the other programs of ``tests/launchers`` are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict

import deepspeed

from tests.deepspeed import launch, training


def train(steps: int) -> Dict[str, Any]:
    """Bart in an engine with ZeRO 2, beside a reference."""
    deepspeed.ops.__compatible_ops__ = {}
    deepspeed.init_distributed("gloo")
    plan = asdict(launch.Scenario("engine", stage=2))
    run = training.Run(plan, {})
    for step in range(steps):
        run.step(step)
    layers = run.record["layers"]
    skipped = [[layer for layer in layers if layer not in ran] for ran in run.record["ran"]]
    # Each rank is compared with the same reference, and so with the other rank.
    return {"skipped": skipped, "errors": run.record["apart"], "equal": [each == 0.0 for each in run.record["apart"]]}
