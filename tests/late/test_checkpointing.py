"""LayerDrop with activation checkpointing under DDP, of either kind, around layers or around a whole encoder."""

from __future__ import annotations

from typing import Any, Dict

import pytest
import torch
import transformers
from packaging.version import Version

from tests.late import launch
from tests.late.launch import Ranks, Scenario, both, comparison

pytestmark = [pytest.mark.patches("torch.reentrant", "torch.finalize"), pytest.mark.sampled(inside=False, cells=True)]
# Gradients of wav2vec2's small convolutions are noise on the CPU before torch 2.1, in one process, too.
MODEL = "wav2vec2" if Version(torch.__version__) >= Version("2.1") else "bart_encoder"
# Before transformers 4.35 its layers cannot choose the kind: it is the reentrant one.
LAYERS = ["reentrant", "other"] if Version(transformers.__version__) >= Version("4.35") else ["default"]
# BART's encoder and decoder share their embeddings: the reentrant kind around one of them has them ready twice in DDP.
AROUND = ["default", "reentrant", "other"] if MODEL == "wav2vec2" else ["other"]
KINDS = [f"layers-{kind}" for kind in LAYERS] + [f"encoder-{kind}" for kind in AROUND]
REENTRANT = [kind for kind in KINDS if not kind.endswith("other")]
READY_TWICE = "Expected to mark a variable ready only once"
STEPS = 10
MODES = ("auto", "find", "late")


def scenario(name: str, kind: str, **others: Any) -> Scenario:
    return Scenario(name, comparison=comparison(MODEL, checkpointing=kind), **{"steps": STEPS, **others})


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    flag = {"find_unused_parameters": True}
    plans = [scenario(f"plain-{kind}", kind, ddp=flag, steps=3, timeout=8) for kind in KINDS]
    plans += [scenario(f"flag-{kind}", kind, ddp=flag, settings={}) for kind in KINDS]
    plans += [scenario(f"{mode}-{kind}", kind, settings={"unused": mode}) for kind in ["", *KINDS] for mode in MODES]
    return launch.train(plans, tmp_path_factory.mktemp("checkpointing"))


@pytest.mark.parametrize("kind", REENTRANT)
def test_plain_torch_cannot_train_with_the_flag(outcomes: Dict[str, Ranks], kind: str) -> None:
    assert any(READY_TWICE in ((record or {}).get("error") or "") for _, record in outcomes[f"plain-{kind}"])


@pytest.mark.parametrize("mode", ["auto", "find", "late", "flag"])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_without_checkpointing(outcomes: Dict[str, Ranks], kind: str, mode: str) -> None:
    expected, records = both(outcomes, "find-"), both(outcomes, f"{mode}-{kind}")
    for one, other in zip(expected, records):
        assert one["steps"] == other["steps"] and one["none"] == other["none"]


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
