"""The runs of :mod:`tests.wenet.test_uneven`: each unpatched, and under ddpfix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

from tests.wenet.uneven_runs import Scenario, era, shards


def fails(where: str, at: int = 102) -> Dict[str, Any]:
    return {"rank": 1, "at": at, "where": where}


def unpatched(tree: Path) -> List[Scenario]:
    """All scenarios that a release can run, without ddpfix."""
    # The optimizer steps after the first micro-batch of a window up to 2.2.1, after the last one from 3.0.0 on.
    empty = [101] if era(tree) == 3 else [102]
    plans = [
        Scenario("uneven", (3, 5), epochs=2),
        Scenario("nothing", (0, 3)),
        Scenario("three", (2, 4, 3)),
        Scenario("empty", (4, 4), accum=2, empty=empty),
        Scenario("loader", (4, 4), fail=fails("loader"), alive=8),
        Scenario("worker", (4, 4), fail=fails("worker"), alive=8, workers=1, epochs=2),
    ]
    if era(tree) > 1:
        plans.append(Scenario("validation", (2, 2), cv=(2, 4)))
    if era(tree) == 3:
        plans.append(Scenario("step_mode", (3, 5), save_interval=2))
    if shards(tree):
        plans.append(Scenario("fsdp", (3, 5), engine="torch_fsdp"))
        plans.append(Scenario("slow", (4, 4), engine="torch_fsdp", fail=fails("slow")))
    return plans


def patched(tree: Path) -> List[Scenario]:
    """The same with ddpfix, and some of its own."""
    plans = [replace(plan, settings={}, timeout=20, alive=min(plan.alive, 1.5)) for plan in unpatched(tree)]
    one = {scenario.name: scenario for scenario in plans}
    stop, off = {"uneven": "stop"}, {"uneven": "off"}
    plans += [replace(one[name], name=f"{name}_stop", settings=stop) for name in ("uneven", "nothing", "three")]
    plans.append(Scenario("pipe", (3, 5), settings={}, workers=1, epochs=2))
    plans.append(Scenario("pipe_stop", (3, 5), settings=stop, workers=1, epochs=2))
    plans.append(Scenario("asked_pad", (2, 2), settings={"uneven": "pad"}))
    if "validation" in one:
        # After an epoch under model.join, which is what makes unpatched WeNet hang.
        plans.append(replace(one["validation"], name="validation_off", settings=off))
    if "step_mode" in one:
        plans.append(replace(one["step_mode"], name="step_mode_stop", settings=stop))
    if "fsdp" in one:
        plans += [replace(one[name], name=f"{name}_off", settings=off, timeout=20) for name in ("fsdp", "slow")]
        plans.append(replace(one["fsdp"], name="fsdp_join", settings={"uneven": "join"}))
        plans.append(replace(one["fsdp"], name="fsdp_nothing", counts=(0, 3)))
    return plans
