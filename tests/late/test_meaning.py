"""If all ranks skip the same layers, training without the flag equals training with it, checkpointed as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest
import torch
import transformers
from packaging.version import Version

from tests.late.launch import Ranks, Scenario, both, ends

pytestmark = [
    pytest.mark.sampled(inside=False, cells=True),
    pytest.mark.patches("torch.accumulation", "torch.finalize", "torch.reentrant"),
]
# Gradients of wav2vec2's small convolutions are noise on the CPU before torch 2.1, in one process, too.
MODEL = "wav2vec2" if Version(torch.__version__) >= Version("2.1") else "bart_encoder"
# What the trainings are given (tests.late.compared).
PLANS: Dict[str, Dict[str, Any]] = {
    "sgd": {"model": MODEL},
    "adamw": {"model": MODEL, "optimizer": "adamw"},
    "accumulating": {"model": MODEL, "optimizer": "adamw", "accum": 3},
    "zeros": {"model": MODEL, "to_none": False},
    "encoder": {"model": "bart_encoder", "optimizer": "adamw"},
    "siamese": {"model": "siamese" if MODEL == "wav2vec2" else MODEL},
}
# PowerSGD begins to compress after the step that is run here: on gloo it may not end.
HOOKS = {"allreduce_hook": 8, "fp16_compress_hook": 8, "powerSGD_hook": 1}
MODES = ("find", "late")
FIND = {"unused": "find"}
VIEWS = {"gradient_as_bucket_view": True}
# Before transformers 4.35 its layers cannot choose the kind of checkpoint: it is the reentrant one.
LAYERS = ["reentrant", "other"] if Version(transformers.__version__) >= Version("4.35") else ["default"]
# BART's encoder and decoder share their embeddings: the reentrant kind around one of them has them ready twice in DDP.
AROUND = ["default", "reentrant", "other"] if MODEL == "wav2vec2" else ["other"]
KINDS = [f"layers-{kind}" for kind in LAYERS] + [f"encoder-{kind}" for kind in AROUND]
REENTRANT = [kind for kind in KINDS if not kind.endswith("other")]
FLAG = {"find_unused_parameters": True}


def plans(folder: Path) -> List[Scenario]:
    def scenario(name: str, plan: Dict[str, Any], steps: int, settings: Any = None, **others: Any) -> Scenario:
        return Scenario(name, "compared:train", {**plan, "steps": steps}, settings, **others)

    plans = []
    for mode in MODES:
        settings = {"unused": mode}
        for name, plan in PLANS.items():
            plans.append(scenario(f"{name}-{mode}", plan, 50 if name in ("sgd", "adamw") else 12, settings))
        plans.append(scenario(f"views-{mode}", {**PLANS["sgd"], **VIEWS}, 12, settings))
    off = {"DDPFIX_TORCH_ACCUMULATION": "0"}
    plans += [
        # torch's buckets of 25 MB, which all layers of this model share.
        scenario("whole", {**PLANS["sgd"], "cap": 25}, 12, {"unused": "late"}),
        scenario("no_window", PLANS["accumulating"], 12, FIND, environ=off),
        scenario("plain", PLANS["sgd"], 3, timeout=8),
    ]
    plans += [scenario(name, {**PLANS["sgd"], "hook": name}, HOOKS[name], {}) for name in HOOKS]
    for kind in KINDS:
        plan = {**PLANS["sgd"], "checkpointing": kind}
        plans.append(scenario(f"plain-{kind}", {**plan, **FLAG}, 3, timeout=8))
        plans.append(scenario(f"flag-{kind}", {**plan, **FLAG}, 10, {}))
        plans += [scenario(f"{how}-{kind}", plan, 10, {"unused": how}) for how in ("auto", *MODES)]
    return plans


def test_plain_torch_fails_without_the_flag(outcomes: Dict[str, Ranks]) -> None:
    assert any("Expected to have finished reduction" in end for end in ends(outcomes["plain"]))


@pytest.mark.parametrize("plan", PLANS)
def test_parameters_are_bit_for_bit_those_of_the_flag(outcomes: Dict[str, Ranks], plan: str) -> None:
    expected, records = both(outcomes, f"{plan}-find"), both(outcomes, f"{plan}-late")
    assert [record["flag"] for record in (*expected, *records)] == [True, True, False, False]
    for one, other in zip(expected, records):
        assert one["steps"] == other["steps"]
        # Which gradients are None decides about weight decay, momentum and Adam's moments.
        assert one["none"] == other["none"]
        # All ranks know what they skip, and tell each other nothing; from 2.4 on each micro-batch skips other layers.
        assert (other["exchanges"] > 0) == (plan == "accumulating" and Version(torch.__version__) >= Version("2.4"))
    if plan != "zeros":
        assert len(set(expected[0]["none"])) > 3
    # What all ranks know to be unused keeps None.
    assert all("with zeros" not in log for log, _ in outcomes[f"{plan}-late"])


@pytest.mark.parametrize("name", ["whole", "views-find", "views-late"])
def test_so_they_are_in_other_buckets(outcomes: Dict[str, Ranks], name: str) -> None:
    records, expected = both(outcomes, name), both(outcomes, "sgd-find")
    assert records[0]["steps"] == expected[0]["steps"][:12] and records[0]["none"] == expected[0]["none"][:12]
    assert records[0]["views"] == name.startswith("views")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_of_the_user(outcomes: Dict[str, Ranks], hook: str) -> None:
    records, expected = both(outcomes, hook), both(outcomes, "sgd-find")
    if hook == "allreduce_hook":
        assert records[0]["steps"] == expected[0]["steps"][:8] and records[0]["none"] == expected[0]["none"][:8]
    # The flag and PowerSGD may make ranks wait for ever.
    assert records[0]["flag"] == (hook != "powerSGD_hook")
    assert (f"ranks may deadlock when {hook}" in outcomes[hook][0][0]) == (hook == "powerSGD_hook")


@pytest.mark.skipif(Version(torch.__version__) >= Version("2.4"), reason="DDP does it right since torch 2.4")
def test_ranks_part_where_micro_batches_skip_different_layers_under_the_flag(outcomes: Dict[str, Ranks]) -> None:
    (_, first), (_, second) = outcomes["no_window"]
    assert first is not None and second is not None and first["steps"] != second["steps"]
    # These are compared there.
    assert both(outcomes, "accumulating-find")[0]["steps"] not in (first["steps"], second["steps"])


# Activation checkpointing of either kind, around layers or around a whole encoder.


@pytest.mark.parametrize("kind", REENTRANT)
def test_plain_torch_cannot_train_reentrant_checkpoints_with_the_flag(outcomes: Dict[str, Ranks], kind: str) -> None:
    assert any("mark a variable ready only once" in end for end in ends(outcomes[f"plain-{kind}"]))


@pytest.mark.parametrize("mode", ["auto", "find", "late", "flag"])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_without_checkpointing(outcomes: Dict[str, Ranks], kind: str, mode: str) -> None:
    for one, other in zip(both(outcomes, "sgd-find"), both(outcomes, f"{mode}-{kind}")):
        assert one["steps"][:10] == other["steps"] and one["none"][:10] == other["none"]


@pytest.mark.parametrize("kind", KINDS)
def test_late_keeps_the_kind(outcomes: Dict[str, Ranks], kind: str) -> None:
    for record in both(outcomes, f"late-{kind}"):
        assert record["flag"] is False
        assert bool(record["recomputed"][0]) == (kind in REENTRANT)


@pytest.mark.parametrize("mode", ["find", "flag"])
@pytest.mark.parametrize("kind", REENTRANT)
def test_the_flag_makes_it_the_other_kind(outcomes: Dict[str, Ranks], kind: str, mode: str) -> None:
    records = both(outcomes, f"{mode}-{kind}")
    assert [(record["flag"], record["recomputed"]) for record in records] == [(True, [0])] * 2
    assert "use_reentrant=False" in outcomes[f"{mode}-{kind}"][0][0]


@pytest.mark.parametrize("kind", KINDS)
def test_auto_leaves_the_flag_out_where_the_kind_is_known(outcomes: Dict[str, Ranks], kind: str) -> None:
    log = outcomes[f"auto-{kind}"][0][0]
    is_known = kind == "layers-reentrant"
    for record in both(outcomes, f"auto-{kind}"):
        assert record["flag"] is not is_known
        assert bool(record["recomputed"][0]) == is_known
    assert (
        "find_unused_parameters is not set (" in log and "because reentrant gradient checkpointing" in log
    ) == is_known
