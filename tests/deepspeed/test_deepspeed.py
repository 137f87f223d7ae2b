"""LayerDrop in DeepSpeed's engine: unpatched, ranks send what does not belong together; under ddpfix they skip alike.

The reference is the same model without DeepSpeed and without ddpfix, made by hand of the layers that ran.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.deepspeed.launch import Scenario, train
from tests.support import pool

pytestmark = [pytest.mark.sampled(inside=False, cells=True), pytest.mark.patches("deepspeed.layerdrop")]

SYNC = {"layerdrop": "sync"}
OFF = {"DDPFIX_DEEPSPEED_LAYERDROP": "0"}
# Gradients that are added up in another order than the reference's: over micro-batches, and in a reentrant backward.
ROUNDING = 1e-6
# What ends or hangs on the unpatched toolkit.
BUCKETS = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 999}
PLANS: Dict[str, Dict[str, Any]] = {
    "bart-1": {"stage": 1},
    "bart-2": {"stage": 2},
    "sgd": {"stage": 1, "optimizer": "sgd"},
    "wavlm-1": {"stage": 1, "model": "wavlm"},
    "wavlm-2": {"stage": 2, "model": "wavlm"},
    "funasr-1": {"stage": 1, "model": "funasr"},
    "funasr-2": {"stage": 2, "model": "funasr"},
    "wenet-1": {"stage": 1, "model": "wenet"},
    "wenet-2": {"stage": 2, "model": "wenet"},
    "own-1": {"stage": 1, "model": "own"},
    "own-2": {"stage": 2, "model": "own"},
    "accum-1": {"stage": 1, "accum": 3},
    "accum-2": {"stage": 2, "accum": 3},
    "checkpointing": {"stage": 2, "model": "wavlm", "checkpointing": "layers"},
    "reentrant": {"stage": 1, "model": "wavlm", "checkpointing": "layers-reentrant"},
    "evaluated": {"stage": 2, "evaluated": True},
    "buckets": {"stage": 2, "more": {"zero_optimization": BUCKETS}},
    "trainer": {"stage": 2, "loop": "trainer"},
}
# What trains by itself.
WHOLE: Dict[str, Dict[str, Any]] = {
    "told": {"stage": 3, "model": "wavlm", "told": True},
    "trainer-3": {"stage": 3, "model": "wavlm", "loop": "trainer"},
}
# What nobody can train.
PARTS: Dict[str, Dict[str, Any]] = {
    "bart-3": {"stage": 3},
    "funasr-3": {"stage": 3, "model": "funasr"},
    "wenet-3": {"stage": 3, "model": "wenet"},
    "equal-3": {"stage": 3, "equal": True},
    "bart-3-trainer": {"stage": 3, "loop": "trainer"},
}
Ran = Dict[str, List[pool.Record]]


def possible(plans: Dict[str, Dict[str, Any]]) -> List[Any]:
    """Names of plans, those of toolkits that are not here with a reason."""
    found = []
    for name, plan in plans.items():
        toolkit = plan.get("model")
        here = toolkit not in ("funasr", "wenet") or find_spec(toolkit) is not None
        reason = f"{toolkit} is not here: python -m tests.cells deepspeed, for WeNet with TEST_WENET (docs/wenet.md)"
        found.append(pytest.param(name, marks=pytest.mark.skipif(not here, reason=reason)))
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """(log, record) of both ranks, by scenario."""
    plans = {name.values[0]: name for name in possible({**PLANS, **WHOLE, **PARTS}) if not name.marks[0].args[0]}
    every = {name: {**PLANS, **WHOLE, **PARTS}[name] for name in plans}
    few = {"bart-1", "own-1", "bart-3", "funasr-1", "wenet-1", "trainer", "equal-3", "told", "trainer-3"}
    unpatched = {"bart-0": {"stage": 0}, **{name: plan for name, plan in every.items() if name in few}}
    scenarios = [
        *(Scenario(f"unpatched-{name}", **plan, timeout=60) for name, plan in unpatched.items()),
        *(Scenario(name, **plan, settings=SYNC) for name, plan in {"bart-0": {"stage": 0}, **every}.items()),
        Scenario("off", stage=1, settings=SYNC, environ=OFF, timeout=60),
        Scenario("stays", stage=0, settings={"layerdrop": "stock"}),
        Scenario("none", stage=3, settings={"layerdrop": "off"}),
        *(Scenario(f"looks-{on}", looks=True, rate=0.0, settings=SYNC if on else None) for on in (False, True)),
        Scenario("grouped", stage=0, grouped=True, settings=SYNC),
    ]
    return train(scenarios, Path(tmp_path_factory.mktemp("deepspeed")))


def records(ran: Ran, name: str) -> List[Dict[str, Any]]:
    """What both ranks recorded; fails with their logs where one had an error."""
    for log, record in ran[name]:
        assert record is not None and record["error"] is None, f"{name}\n{log[-4000:]}"
    return [record for _, record in ran[name] if record is not None]


def ended(ran: Ran, name: str) -> str:
    """What the ranks of a run that did not come to its end have said."""
    assert all(record is None or record["error"] is not None for _, record in ran[name]), name
    return "".join(log + str(record and record["error"]) for log, record in ran[name])


@pytest.mark.parametrize(
    "name", ["bart-1", "own-1", *possible({k: PLANS[k] for k in ("funasr-1", "wenet-1")}), "trainer", "bart-3"]
)
def test_unpatched_ends(ran: Ran, name: str) -> None:
    """Ranks send gradients, and gather parameters, of different layers."""
    assert "Received data size doesn't match expected size" in ended(ran, f"unpatched-{name}")


def test_without_the_patch_it_ends_too(ran: Ran) -> None:
    assert "Received data size doesn't match expected size" in ended(ran, "off")


@pytest.mark.parametrize("name", possible(PLANS))
def test_ranks_skip_the_same_layers(ran: Ran, name: str) -> None:
    """With the gradients of a reference, to the last bit where these are added up in one order."""
    one, other = records(ran, name)
    assert one["ran"] == other["ran"] and len({tuple(layers) for layers in one["ran"]}) > 1
    assert any(len(layers) < len(one["layers"]) for layers in one["ran"])
    for record in (one, other):
        assert max(record["apart"]) <= (ROUNDING if name in ("accum-2", "reentrant") else 0.0)
        last = [layer for layer in record["layers"] if layer not in record["ran"][-1]]
        # A layer is told by the module that holds the list, and its number there.
        held_in = "encoders." if name.startswith("own") else "layers."
        assert record["decided"] == sorted(layer.replace(held_in, "") for layer in last)


def test_stage_0_trains_by_itself(ran: Ran) -> None:
    """DeepSpeed sends a zero for each gradient that is missing. Under ddpfix ranks skip alike."""
    one, other = records(ran, "unpatched-bart-0")
    assert one["ran"] != other["ran"]
    mine, theirs = records(ran, "bart-0")
    assert mine["ran"] == theirs["ran"]
    assert all(max(record["apart"]) == 0.0 for record in (one, other, mine, theirs))


def test_as_shipped_it_is_left_alone(ran: Ran) -> None:
    for record, unpatched in zip(records(ran, "stays"), records(ran, "unpatched-bart-0")):
        assert record["ran"] == unpatched["ran"] and record["loss"] == unpatched["loss"] and not record["decided"]


@pytest.mark.parametrize("name", WHOLE)
def test_encoders_that_ask_for_stage_3_run_all_layers(ran: Ran, name: str) -> None:
    """Bit for bit as without ddpfix."""
    for record, unpatched in zip(records(ran, name), records(ran, f"unpatched-{name}")):
        assert all(layers == record["layers"] for layers in record["ran"]) and record["decided"] == []
        assert record["apart"] == unpatched["apart"] and record["loss"] == unpatched["loss"]
        assert max(record["apart"]) < 1e-5


def test_stage_3_trains_wrongly_even_where_ranks_draw_the_same(ran: Ran) -> None:
    """A layer that is left out keeps the gradient of the step before: which is why it is refused."""
    assert all(max(record["apart"]) > 1e-3 for record in records(ran, "unpatched-equal-3"))


@pytest.mark.parametrize("name", possible(PARTS))
def test_stage_3_is_refused(ran: Ran, name: str) -> None:
    """On both ranks, before a backward."""
    for log, record in ran[name]:
        error = log if record is None else str(record["error"])
        assert "under ZeRO 3 a layer that does not run keeps the gradient" in error, error
        assert "DDPFIX_LAYERDROP=off" in error, error


def test_stage_3_without_layerdrop(ran: Ran) -> None:
    """As the error says."""
    for record in records(ran, "none"):
        assert all(layers == record["layers"] for layers in record["ran"]) and max(record["apart"]) < 1e-5


def test_a_rank_that_runs_a_forward_alone_is_not_waited_for(ran: Ran) -> None:
    """As without ddpfix: ranks meet where the engine is made, and nowhere else."""
    for record, unpatched in zip(records(ran, "looks-True"), records(ran, "looks-False")):
        assert record["loss"] == unpatched["loss"] and record["apart"] == unpatched["apart"] == [0.0] * 5


def test_groups_of_the_programs_own(ran: Ran) -> None:
    """Which ranks train one model is not known then: one line, from rank 0, and LayerDrop as shipped."""
    found = records(ran, "grouped")
    assert [log.count("DeepSpeed was given an mpu") for log, _ in ran["grouped"]] == [1, 0]
    for record, unpatched in zip(found, records(ran, "unpatched-bart-0")):
        assert record["decided"] is None and max(record["apart"]) == 0.0
        assert record["ran"] == unpatched["ran"] and record["loss"] == unpatched["loss"]
