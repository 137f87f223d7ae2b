"""If all ranks skip the same layers, training without the flag equals training with it, and unused buckets stay."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import pytest
import torch
from packaging.version import Version

from tests.late import launch
from tests.late.launch import Scenario, both, comparison
from tests.late.test_exact import Ranks

pytestmark = [
    pytest.mark.sampled(inside=False, cells=True),
    pytest.mark.patches("torch.unsent", "torch.aligned", "torch.accumulation", "torch.late"),
]
PLANS: Dict[str, Dict[str, Any]] = {
    "sgd": comparison(),
    "adamw": comparison(optimizer="adamw"),
    "accumulating": comparison(optimizer="adamw", accum=3),
    "zeros": comparison(to_none=False),
    "encoder": comparison("bart_encoder", optimizer="adamw"),
    "siamese": comparison("siamese"),
}
OLD = Version(torch.__version__) < Version("2.1")
# Before torch 2.4 DDP's first bucket takes 1 MiB whatever bucket_cap_mb says: all of these models is in that one.
CAPPED = Version(torch.__version__) >= Version("2.4")
if OLD:
    # Its gradients of wav2vec2's small convolutions are noise on the CPU, in one process, too.
    PLANS = {name: {**plan, "model": "bart_encoder"} for name, plan in PLANS.items()}
POWER = "powerSGD_hook"
HOOKS = ("allreduce_hook", "fp16_compress_hook", POWER)
# Whether DDP accepts the sizes of the buckets that it will rebuild.
SIZES = "bucket_bytes_cap_list" in (torch.distributed.Reducer.__init__.__doc__ or "")
MODES: Dict[str, Tuple[str, str]] = {
    "find": ("find", "0"),
    "find_unsent": ("find", "1"),
    "late": ("late", "0"),
    "late_unsent": ("late", "1"),
}
OFF, ALIGNED, HOLD = "DDPFIX_TORCH_UNSENT", "DDPFIX_TORCH_ALIGNED", "DDPFIX_TORCH_ACCUMULATION"
FIND = {"unused": "find"}
VIEWS = "gradient_as_bucket_view"


def scenario(plan: str, mode: str, **others: Any) -> Scenario:
    unused, unsent = MODES[mode]
    environ = {} if unsent == "1" else {OFF: "0"}
    steps = 50 if plan in ("sgd", "adamw") else 12
    return Scenario(
        f"{plan}-{mode}", comparison=PLANS[plan], settings={"unused": unused}, environ=environ, steps=steps, **others
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    plans = [scenario(plan, mode) for plan in PLANS for mode in MODES]
    plans += [
        Scenario("views", comparison=PLANS["sgd"], settings={"bucket_view": "1"}, steps=12),
        Scenario("late_views", comparison=PLANS["sgd"], settings={"bucket_view": "1", "unused": "late"}, steps=12),
        Scenario("no_views", comparison=PLANS["sgd"], settings={"bucket_view": "1"}, ddp={VIEWS: False}, steps=1),
        # Buckets of the size that torch chooses by itself, which all layers of this model share.
        Scenario("whole", comparison={**PLANS["sgd"], "cap": 25}, settings={"unused": "late"}, steps=12),
        Scenario(
            "whole_plain",
            comparison={**PLANS["sgd"], "cap": 25},
            settings={"unused": "late"},
            environ={ALIGNED: "0"},
            steps=12,
        ),
        Scenario("no_window", comparison=PLANS["accumulating"], settings=FIND, environ={HOLD: "0"}, steps=12),
        Scenario("plain", comparison=PLANS["sgd"], steps=3, timeout=8),
        Scenario("plain_flag", comparison=PLANS["sgd"], ddp={"find_unused_parameters": True}, steps=12),
    ]
    for hook in HOOKS:
        # PowerSGD begins to compress after the steps that are run here: on gloo it may not end.
        hooked: Dict[str, Any] = {"comparison": PLANS["sgd"], "hook": hook, "settings": {}}
        plans.append(Scenario(hook, steps=1 if hook == POWER else 8, **hooked))
        plans.append(Scenario(f"{hook}_off", steps=1 if hook == POWER else 8, environ={OFF: "0"}, **hooked))
    return launch.train(plans, tmp_path_factory.mktemp("meaning"))


def test_plain_torch_fails_without_the_flag(outcomes: Dict[str, Ranks]) -> None:
    assert any(
        "Expected to have finished reduction" in (record or {}).get("error", "") for _, record in outcomes["plain"]
    )


@pytest.mark.parametrize("mode", ["find_unsent", "late", "late_unsent"])
@pytest.mark.parametrize("plan", PLANS)
def test_parameters_are_bit_for_bit_those_of_the_flag(outcomes: Dict[str, Ranks], plan: str, mode: str) -> None:
    expected, records = both(outcomes, f"{plan}-find"), both(outcomes, f"{plan}-{mode}")
    assert [record["flag"] for record in records] == [mode == "find_unsent"] * 2
    for one, other in zip(expected, records):
        assert one["steps"] == other["steps"]
        # Which gradients are None decides about weight decay, momentum and Adam's moments.
        assert one["none"] == other["none"]
    if plan != "zeros":
        assert len(set(expected[0]["none"])) > 3
    # What all ranks know to be unused keeps None.
    assert all("with zeros" not in log for log, _ in outcomes[f"{plan}-{mode}"])


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("mode", ["find_unsent", "late_unsent"])
def test_what_nobody_used_is_not_sent(outcomes: Dict[str, Ranks], plan: str, mode: str) -> None:
    first, second = both(outcomes, f"{plan}-{mode}")
    assert first["traffic"] == second["traffic"] and first["all_reduces"] == second["all_reduces"]
    sent, saved, buckets, kept = first["traffic"]
    if plan == "zeros":
        # With zero_grad(set_to_none=False) a layer that ran once has a gradient of zeros, and is sent from then on.
        assert kept <= 10
    elif mode == "find_unsent" or CAPPED:
        assert saved > 0 and kept > 0
    else:
        # Without the flag the buckets end where DDP ends them.
        assert (saved, kept) == (0, 0)
    # No collective was added: each bucket that counts as sent is one, and a kept bucket is none.
    assert first["all_reduces"] == buckets
    if mode == "find_unsent" and PLANS[plan]["model"] == "wav2vec2" and plan == "sgd":
        # Buckets end where layers end: at a rate of 0.5, about a half of what the layers hold is saved.
        assert saved / (sent + saved) > 0.3


def test_buckets_end_where_layers_end_without_the_flag_too(outcomes: Dict[str, Ranks]) -> None:
    records, plain, expected = (both(outcomes, name) for name in ("whole", "whole_plain", "sgd-find"))
    assert records[0]["steps"] == plain[0]["steps"] == expected[0]["steps"][:12]
    assert records[0]["none"] == plain[0]["none"] == expected[0]["none"][:12]
    sent, saved, buckets, kept = plain[0]["traffic"]
    assert (saved, kept) == (0, 0)
    sent, saved, buckets, kept = records[0]["traffic"]
    if SIZES:
        assert saved / (sent + saved) > 0.3
        # One for each of four layers and one for the rest, from the first step on.
        assert buckets + kept == 12 * 5
    else:
        assert (saved, kept) == (0, 0)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_of_the_user_has_all_other_buckets(outcomes: Dict[str, Ranks], hook: str) -> None:
    records, expected = both(outcomes, hook), both(outcomes, f"{hook}_off")
    assert records[0]["steps"] == expected[0]["steps"] and records[0]["none"] == expected[0]["none"]
    refused = hook == POWER
    assert (f"gradients of skipped layers are communicated: {hook} may keep" in outcomes[hook][0][0]) == refused
    assert (records[0]["traffic"] is None) == refused and expected[0]["traffic"] is None
    if not refused:
        # What its hook would have sent.
        assert records[0]["traffic"][3] > 0 and records[0]["all_reduces"] < expected[0]["all_reduces"]


@pytest.mark.patches("torch.bucket_view")
@pytest.mark.parametrize("name", ["views", "late_views"])
def test_views(outcomes: Dict[str, Ranks], name: str) -> None:
    records, expected = both(outcomes, name), both(outcomes, "sgd-find")
    assert records[0]["steps"] == expected[0]["steps"][:12] and records[0]["none"] == expected[0]["none"][:12]
    assert records[0]["views"] and not expected[0]["views"]
    # Buckets that no rank used are not sent there either, if they end where layers end.
    if name == "late_views":
        assert (records[0]["traffic"][3] > 0) is CAPPED
    elif not OLD or records[0]["traffic"]:
        assert records[0]["traffic"][3] > 0


@pytest.mark.skipif(Version(torch.__version__) >= Version("2.4"), reason="DDP does it right since torch 2.4")
def test_ranks_part_where_micro_batches_skip_different_layers_under_the_flag(outcomes: Dict[str, Ranks]) -> None:
    (_, first), (_, second) = outcomes["no_window"]
    assert first is not None and second is not None and first["steps"] != second["steps"]
    # These are compared there.
    assert both(outcomes, "accumulating-find")[0]["steps"] not in (first["steps"], second["steps"])


def test_no_views_are_made_for_who_has_said_so(outcomes: Dict[str, Ranks]) -> None:
    assert not both(outcomes, "no_views")[0]["views"]
    assert "gradient_as_bucket_view=False is your own setting and stays" in outcomes["no_views"][0][0]
