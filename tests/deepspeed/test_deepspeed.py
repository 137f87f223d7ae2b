"""LayerDrop in DeepSpeed's engine: unpatched, ranks send what does not belong together; under ddpfix they skip alike.

The reference is the same model without DeepSpeed and without ddpfix, made by hand of the layers that ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from tests.support import pool, scenario

pytestmark = [pytest.mark.sampled(inside=False, cells=True), pytest.mark.patches("deepspeed.layerdrop")]
RANK = Path(__file__).with_name("rank.py")
RANKS = 2
# DeepSpeed on a machine without an accelerator, and no kernel that it would have to compile.
ENVIRON = {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
# With the largest distance from the reference; gradients of micro-batches, and of a reentrant backward, are added up in
# another order than its own.
TRAIN: Dict[str, Dict[str, Any]] = {
    "zero-0": {"stage": 0},
    "zero-1": {"stage": 1, "evaluated": True},
    "accumulated": {"stage": 2, "accum": 3},
    "own": {"stage": 2, "model": "own"},
    "reentrant": {"stage": 1, "model": "wavlm", "reentrant": True},
}
ROUNDING = {"accumulated": 1e-6, "reentrant": 1e-6}
TOLD: Dict[str, Any] = {"stage": 3, "model": "wavlm", "told": True}
Ran = Dict[str, List[pool.Record]]


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


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """(log, record) of both ranks, by scenario."""
    unpatched = {"zero-0": TRAIN["zero-0"], "zero-1": {"stage": 1}, "zero-3": {"stage": 3, "equal": True}, "told": TOLD}
    looks = {"looks": True, "rate": 0.0}
    scenarios = [
        *(Scenario(f"unpatched-{name}", **plan, timeout=60) for name, plan in {**unpatched, "looks": looks}.items()),
        *(Scenario(name, **plan, layerdrop="sync") for name, plan in {**TRAIN, "told": TOLD, "looks": looks}.items()),
        Scenario("zero-3", stage=3, layerdrop="sync"),
        Scenario("none", stage=3, layerdrop="off"),
        Scenario("grouped", stage=0, grouped=True, layerdrop="sync"),
    ]
    folder = Path(tmp_path_factory.mktemp("deepspeed"))
    pool.train(RANK, [each.plan(folder) for each in scenarios], folder, RANKS, ENVIRON)
    return {each.name: pool.records(folder, each.name, RANKS) for each in scenarios}


def records(ran: Ran, name: str) -> List[Dict[str, Any]]:
    """What both ranks recorded; fails with their logs where one had an error."""
    for log, record in ran[name]:
        assert record is not None and record["error"] is None, f"{name}\n{log[-4000:]}"
    return [record for _, record in ran[name] if record is not None]


def test_unpatched_it_ends_or_trains_wrongly(ran: Ran) -> None:
    """ZeRO 1 sends gradients of different layers; ZeRO 3 uses an older gradient, also where ranks draw the same."""
    ends = [log + str(record and record["error"]) for log, record in ran["unpatched-zero-1"]]
    assert any("Received data size doesn't match expected size" in end for end in ends), ends
    one, other = records(ran, "unpatched-zero-0")
    assert one["ran"] != other["ran"] and max(one["apart"] + other["apart"]) == 0.0
    assert all(max(record["apart"]) > 1e-3 for record in records(ran, "unpatched-zero-3"))


@pytest.mark.parametrize("name", TRAIN)
def test_ranks_skip_the_same_layers(ran: Ran, name: str) -> None:
    """With the gradients of a reference, to the last bit where these are added up in one order."""
    one, other = records(ran, name)
    assert one["ran"] == other["ran"] and len({tuple(layers) for layers in one["ran"]}) > 1
    for record in (one, other):
        assert max(record["apart"]) <= ROUNDING.get(name, 0.0)
        # A layer is told by the module that holds the list, and its number there.
        left = [layer for layer in record["layers"] if layer not in record["ran"][-1]]
        assert record["decided"] == sorted(layer.replace("layers.", "") for layer in left)


def test_encoders_that_ask_for_stage_3_run_all_layers(ran: Ran) -> None:
    """Bit for bit as without ddpfix."""
    for record, unpatched in zip(records(ran, "told"), records(ran, "unpatched-told")):
        assert all(layers == record["layers"] for layers in record["ran"]) and record["decided"] == []
        assert record["apart"] == unpatched["apart"] and record["loss"] == unpatched["loss"]


def test_stage_3_is_refused_and_trains_without_layerdrop(ran: Ran) -> None:
    """On both ranks, before a backward; and as the error says."""
    for log, record in ran["zero-3"]:
        error = log if record is None else str(record["error"])
        assert "Under ZeRO 3 such a layer keeps the gradient" in error, error
        assert "DDPFIX_LAYERDROP=off" in error and not (record or {}).get("loss"), error
    for record in records(ran, "none"):
        assert all(layers == record["layers"] for layers in record["ran"]) and max(record["apart"]) < 1e-5


def test_a_rank_that_runs_a_forward_alone_is_not_waited_for(ran: Ran) -> None:
    """As without ddpfix: ranks meet where the engine is made, and nowhere else."""
    for record, unpatched in zip(records(ran, "looks"), records(ran, "unpatched-looks")):
        assert record["loss"] == unpatched["loss"] and record["apart"] == unpatched["apart"] == [0.0] * 5


def test_groups_of_the_programs_own(ran: Ran) -> None:
    """Which ranks train one model is not known then: one line, from rank 0, and LayerDrop as shipped."""
    assert [log.count("DeepSpeed was given an mpu") for log, _ in ran["grouped"]] == [1, 0]
    for record, unpatched in zip(records(ran, "grouped"), records(ran, "unpatched-zero-0")):
        assert record["decided"] is None and max(record["apart"]) == 0.0
        assert record["ran"] == unpatched["ran"] and record["loss"] == unpatched["loss"]
