"""LayerDrop under FSDP: unpatched, every layer runs; under ddpfix, only the kept ones run and are gathered.

The reference is the same model without FSDP and without ddpfix, made of the layers that ran by hand.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence

import pytest
import torch
from packaging.version import Version

from tests.late import launch
from tests.late.launch import Scenario

transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.sampled(inside=False, cells=True),
    pytest.mark.patches("torch.fsdp", "transformers.sharded"),
    pytest.mark.skipif(Version(torch.__version__).release < (2, 6), reason="the row for FSDP begins with torch 2.6"),
    pytest.mark.skipif(Version(transformers.__version__).release < (4, 46), reason="the check for FSDP came with 4.46"),
]


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


# Where FSDP2 divides gradients by itself over gloo.
AVERAGES = Version(torch.__version__).release >= (2, 13)
SYNC = {"layerdrop": "sync"}
OFF = {"DDPFIX_TRANSFORMERS_SHARDED": "0"}
# FSDP2 asks that of streams.
EVENTS = hasattr(torch.cpu.Stream, "record_event")
KINDS = ("fsdp1", "fsdp2") if EVENTS else ("fsdp1",)
NO_EVENTS = pytest.mark.skipif(not EVENTS, reason="a CPU's streams record no events in this torch, as FSDP2 needs them")
EACH = pytest.mark.parametrize("kind", ["fsdp1", pytest.param("fsdp2", marks=NO_EVENTS)])
# Each with FSDP1 and FSDP2.
PLANS: Dict[str, Dict[str, Any]] = {
    "plain": {},
    "sgd": {"optimizer": "sgd"},
    "layers": {"checkpointing": "layers"},
    "reentrant": {"checkpointing": "layers-reentrant"},
    "encoder": {"checkpointing": "encoder"},
    "accum": {"accum": 3},
    "none": {"rate": 1.0, "steps": 3},
}
# What else there is in FSDP1.
OTHERS = ("fsdp1_flat", "fsdp1_whole", "fsdp1_forward_prefetch")
# In torch 2.7 FSDP2 averages over replicas with an operation that gloo does not have.
REPLICAS = EVENTS and Version(torch.__version__).release >= (2, 8)
HYBRID = ("fsdp1_hybrid", "fsdp2_hybrid") if REPLICAS else ("fsdp1_hybrid",)
PATCHED = [
    *(Plan(f"{kind}-{name}", kind, **plan) for kind in KINDS for name, plan in PLANS.items()),
    *(Plan(kind, kind) for kind in OTHERS),
    *([Plan("evaluated", evaluated=True)] if EVENTS else []),
    # It does not ask whether it is sharded, and skips layers under FSDP as well.
    *(Plan(f"{kind}-bart", kind, model="bart") for kind in KINDS),
    Plan("fsdp1-speecht5", "fsdp1", model="speecht5"),
    Plan("families", KINDS[-1], model="", steps=4),
]
UNPATCHED = [
    *(Plan(kind, kind, steps=2) for kind in KINDS),
    *(Plan(f"{kind}-encoder", kind, checkpointing="encoder", steps=2) for kind in KINDS),
]

Found = Dict[str, List[Any]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The records of each rank, by scenario and plan."""
    plain = [Plan(kind, kind, steps=2) for kind in KINDS]
    scenarios = [
        scenario("unpatched", UNPATCHED),
        scenario("patched", PATCHED, SYNC),
        scenario("stays", plain, {"layerdrop": "stock"}),
        scenario("off", plain, SYNC, environ=OFF),
        scenario("dies", [Plan("bart", KINDS[-1], model="bart", steps=3)], timeout=60),
        scenario("hybrid", [Plan(kind, kind, accum=2) for kind in HYBRID], SYNC, size=4),
    ]
    trained = launch.train(scenarios, tmp_path_factory.mktemp("sharded"), of=4)
    dies = [log for log, record in trained.pop("dies") if record is None or record["error"]]
    for name, ranks in trained.items():
        for log, record in ranks:
            assert record is not None and record["error"] is None, f"{name}\n{log[-3000:]}"
    found = {
        f"{name}-{plan['name']}": [record[plan["name"]] for _, record in trained[name] if record is not None]
        for name, plans in ((each.name, each.given["plans"]) for each in scenarios if each.name in trained)
        for plan in plans
    }
    return {**found, "dies": dies}


def equal(record: Dict[str, Any], rounding: float = 0.0) -> None:
    """Losses, gradients and parameters equal the reference's."""
    for loss, expected in zip(record["loss"], record["expected"]):
        assert math.isclose(loss, expected, rel_tol=rounding)
    assert max(record["apart"]) <= rounding
    assert max(record["gradients"]) <= rounding


def skipped(record: Dict[str, Any]) -> List[int]:
    """How many layers each forward left out."""
    return [len(record["layers"]) - len(names) for names in record["ran"]]


def gathers(record: Dict[str, Any]) -> List[int]:
    return [len(sizes) for sizes in record["gathers"]]


def test_gradients_are_reduced_as_in_plain_torch(ran: Found) -> None:
    """Sums of gradients are divided by the program, so a torch without ddpfix must make sums of them as well."""
    for kind in KINDS:
        plain = {record["reduced"] for record in ran[f"unpatched-{kind}"]}
        ours = {record["reduced"] for record in ran[f"patched-{kind}-plain"]}
        assert ours == plain and plain <= ({1.0} if AVERAGES or kind == "fsdp1" else {1.0, 2.0})


@EACH
@pytest.mark.parametrize("mode", ["unpatched", "stays", "off"])
def test_unpatched_runs_and_gathers_every_layer(ran: Found, kind: str, mode: str) -> None:
    """So does ddpfix with DDPFIX_LAYERDROP=stock, and without this patch."""
    for record in ran[f"{mode}-{kind}"]:
        assert skipped(record) == [0, 0] and not record["decided"]
        # The root once, each layer in forward and in backward.
        assert gathers(record) == [9, 9] and [len(sizes) for sizes in record["reduces"]] == [5, 5]
        equal(record)


@EACH
@pytest.mark.parametrize("plan", ["plain", "sgd", "layers", "reentrant"])
def test_skipped_layers_are_not_gathered(ran: Found, kind: str, plan: str) -> None:
    one, other = ran[f"patched-{kind}-{plan}"]
    whole = ran[f"unpatched-{kind}"][0]
    assert one["ran"] == other["ran"] and len({tuple(names) for names in one["ran"]}) > 2
    left_out = skipped(one)
    assert any(left_out)
    for record in (one, other):
        assert gathers(record) == [9 - 2 * count for count in left_out]
        assert [len(sizes) for sizes in record["reduces"]] == [5 - count for count in left_out]
        # In numbers as well as in calls.
        share = [sum(sizes) / sum(whole["gathers"][0]) for sizes in record["gathers"]]
        assert share == pytest.approx([1 - count * 0.2325 for count in left_out], abs=0.002)
        equal(record)


@EACH
def test_a_skipped_layer_has_no_gradient_and_ddpfix_tells_which(ran: Found, kind: str) -> None:
    """None, so that the optimizer leaves it alone: the reference's does, with weight decay and moments."""
    for record in ran[f"patched-{kind}-plain"]:
        for names, none in zip(record["ran"], record["none"]):
            assert none == [name for name in record["layers"] if name not in names]
        assert record["decided"] == [name.replace("layers.", "") for name in none]


@EACH
def test_a_checkpoint_around_the_encoder_repeats_what_ran(ran: Found, kind: str) -> None:
    """The recomputation in backward must not run the layers that were skipped."""
    unpatched = ran[f"unpatched-{kind}-encoder"][0]
    assert any(unpatched["again"])
    for record in ran[f"patched-{kind}-encoder"]:
        assert any(skipped(record)) and any(record["again"])
        assert all(set(again) <= set(names) for names, again in zip(record["ran"], record["again"]))
        for left_out, count in zip(skipped(record), gathers(record)):
            assert count <= gathers(unpatched)[0] - 2 * left_out
        equal(record)


@EACH
def test_accumulation(ran: Found, kind: str) -> None:
    """A layer that ran in any micro-batch has a gradient.

    Under FSDP1 all micro-batches of a step skip the same: it loses the gradient of a unit that is not in the last one.
    """
    for record in ran[f"patched-{kind}-accum"]:
        windows = [record["ran"][first : first + 3] for first in range(0, 15, 3)]
        assert all(one == two == three for one, two, three in windows) == (kind == "fsdp1")
        for window, none in zip(windows, record["none"]):
            assert none == [name for name in record["layers"] if not any(name in names for names in window)]
        assert len({str(window) for window in windows}) > 2
        equal(record)


@EACH
def test_all_layers_skipped(ran: Found, kind: str) -> None:
    for record in ran[f"patched-{kind}-none"]:
        assert record["ran"] == [[]] * 3 and gathers(record) == [1] * 3
        assert record["none"] == [record["layers"]] * 3
        equal(record)


def as_skipped(record: Dict[str, Any]) -> bool:
    """Whether a layer that is skipped is gathered neither in forward nor in backward."""
    return gathers(record) == [1 + 2 * len(names) for names in record["ran"]]


@pytest.mark.parametrize(
    ("plan", "rounding", "gathered"),
    [
        ("fsdp1_flat", 0.0, as_skipped),
        # One unit for all: nothing is gathered less, skipped layers are not run, and their gradient is zero.
        ("fsdp1_whole", 0.0, lambda record: gathers(record) == [1] * 5),
        # It gathers what followed in the first step, also what is skipped now: less is saved, and nothing is wrong.
        ("fsdp1_forward_prefetch", 0.0, lambda record: sum(gathers(record)) < 9 * 5),
        # Between training steps, all layers run.
        pytest.param("evaluated", 0.0, lambda record: record["evaluated"] == [[4, 5]] * 5, marks=NO_EVENTS),
        # A family that skips under FSDP as well.
        ("fsdp1-bart", 2e-6, bool),
        pytest.param("fsdp2-bart", 2e-6, bool, marks=NO_EVENTS),
        # Two stacks, of which the decoder leaves a skipped layer out in another way.
        ("fsdp1-speecht5", 1e-6, as_skipped),
    ],
)
def test_other_ways_to_shard(ran: Found, plan: str, rounding: float, gathered: Callable[[Any], bool]) -> None:
    one, other = ran[f"patched-{plan}"]
    assert one["ran"] == other["ran"] and any(skipped(one))
    for record in (one, other):
        assert gathered(record)
        equal(record, rounding)


@pytest.mark.parametrize("kind", ("fsdp1_hybrid", "fsdp2_hybrid"))
def test_replicas_of_shards_agree(ran: Found, kind: str) -> None:
    """Two groups of two ranks: what they reduce among each other goes layer by layer."""
    if kind not in HYBRID:
        pytest.skip("FSDP2 in this torch has no replicas over gloo")
    first, *others = ran[f"hybrid-{kind}"]
    assert len(others) == 3 and all(record["ran"] == first["ran"] for record in others) and any(skipped(first))
    for record in ran[f"hybrid-{kind}"]:
        equal(record, rounding=1e-6)


def test_every_family_that_asks(ran: Found) -> None:
    first, second = ran["patched-families"]
    assert {"wav2vec2", "wavlm", "hubert", "speecht5", "sew", "vits"} <= set(first)
    for name, record in first.items():
        assert record["ran"] == second[name]["ran"], name
        assert any(skipped(record)), name
        assert as_skipped(record), name
        equal(record, rounding=1e-6)
        equal(second[name], rounding=1e-6)


def test_unpatched_ranks_that_skip_differently_fail(ran: Found) -> None:
    assert ran["dies"]
