"""The reported failure and its two published fixes, on two ranks through SpeechBrain's own Brain (issue 2340)."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Tuple

import pytest
from packaging.version import Version

from tests.speechbrain import launch, recipes, reference
from tests.speechbrain.launch import Result, Scenario

release = recipes.release()
FAILURE = "Expected to have finished reduction in the prior iteration"
ACCUMULATES = Version("0.5.12") <= release
HAS_PRECISION = Version("1.0.0") <= release
FLAG = ["--find_unused_parameters"]
SWITCHED_OFF = {"speechbrain.unused": "0", "torch.finalize": "0"}
LATE = {"unused": "late", "layerdrop": "stock"}
FINALIZED = "ddpfix trains on without them, as find_unused_parameters=True does"
Results = Dict[str, List[Result]]
REWRITTEN = """import torch


class ASR(sb.Brain):
    def on_fit_start(self):
        self._wrap_distributed()
        self.init_optimizers()
        kinds = [isinstance(module, torch.nn.parallel.DistributedDataParallel) for module in self.modules.values()]
        assert kinds == [True, True], kinds

"""
# What augmentation does in a recipe: one rank draws more than the other, and then their layers differ.
UNEQUAL_USE = """
import numpy, torch
from speechbrain.core import Brain
original = Brain.fit_batch

def fit_batch(self, batch):
    if rank == 1:
        torch.rand(1), numpy.random.random()
    return original(self, batch)

Brain.fit_batch = fit_batch
"""
# Notes, for an extractor that DDP does not wrap, its mode and how many of its layers run in each step.
RECORD_FROZEN = """
from speechbrain.core import Brain
original = Brain.fit_batch
ran, counts, modes = [], [], []
recorder.record.update(frozen_layers=counts, frozen_modes=modes)

def fit_batch(self, batch):
    extractor = self.modules["wav2vec2"]
    model = getattr(extractor, "module", extractor).model
    if not counts:
        for layer in model.encoder.layers:
            layer.register_forward_hook(lambda *_: ran.append(1))
    ran.clear()
    result = original(self, batch)
    counts.append(len(ran))
    modes.append(model.training)
    return result

Brain.fit_batch = fit_batch
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unused")


@pytest.fixture(scope="module")
def yamls(folder: Path) -> Dict[str, Path]:
    """The recipe as it is, without LayerDrop, frozen, with all hidden states, and with checkpointing."""
    write, pretrained = recipes.write, recipes.pretrained
    made = {
        "plain": write(folder),
        "still": write(folder, "still.yaml", pretrained(folder, {"layerdrop": 0.0})),
        "frozen": write(folder, "frozen.yaml", pretrained(folder, freeze=True)),
    }
    if release >= Version("1.1.0"):
        made["old_place"] = write(folder, "old.yaml", pretrained(folder, home_of=recipes.OLD_PLACE))
        frozen = pretrained(folder, home_of=recipes.OLD_PLACE, freeze=True)
        made["frozen_old_place"] = write(folder, "frozen_old.yaml", frozen)
    if recipes.has_all_hiddens():
        made["hiddens"] = write(folder, "hiddens.yaml", output_all_hiddens=True)
    return made


def rewritten(folder: Path) -> Path:
    """A recipe with an ``on_fit_start`` of its own, which looks for DDP as recipes do."""
    script = folder / "rewritten.py"
    script.write_text(recipes.TRAIN.read_text().replace("class ASR(sb.Brain):\n", REWRITTEN, 1))
    return script


@pytest.fixture(scope="module")
def unpatched(folder: Path, yamls: Dict[str, Path]) -> Results:
    scenarios = [
        Scenario("plain", yamls["plain"], timeout=30),
        Scenario("still", yamls["still"], timeout=30),
        Scenario("frozen", yamls["frozen"], before=RECORD_FROZEN),
        Scenario("flag", yamls["still"], FLAG, keep=2),
    ]
    if ACCUMULATES:
        scenarios.append(Scenario("window", yamls["plain"], ["--grad_accumulation_factor=2"], timeout=30))
    return launch.train(scenarios, folder / "unpatched", ddpfix=False)


@pytest.fixture(scope="module")
def patched(folder: Path, yamls: Dict[str, Path]) -> Results:
    scenarios = [
        Scenario("plain", yamls["plain"], keep=3),
        Scenario("flag", yamls["plain"], FLAG, keep=3),
        Scenario("still", yamls["still"], keep=2),
        Scenario("off", yamls["plain"], settings={"layerdrop": "off"}, keep=2),
        Scenario("frozen", yamls["frozen"], before=RECORD_FROZEN),
        Scenario("frozen_unpatched", yamls["frozen"], settings={"speechbrain.frozen": "0"}, before=RECORD_FROZEN),
        Scenario("refused", yamls["plain"], ["--find_unused_parameters=False"], timeout=30),
        Scenario("rewritten", yamls["plain"], script=rewritten(folder)),
        Scenario("switched_off", yamls["plain"], settings=SWITCHED_OFF, timeout=30),
    ]
    scenarios += [
        Scenario("late_unequal", yamls["plain"], settings=LATE, keep=3, before=UNEQUAL_USE),
        Scenario("late_flag", yamls["plain"], FLAG, settings=LATE, keep=1),
    ]
    if ACCUMULATES:
        window = ["--grad_accumulation_factor=3"]
        scenarios.append(Scenario("late_window", yamls["plain"], window, settings=LATE, keep=1, before=UNEQUAL_USE))
    if release >= Version("1.1.0"):
        scenarios.append(Scenario("old_place", yamls["old_place"], keep=2))
        scenarios.append(Scenario("frozen_old_place", yamls["frozen_old_place"], before=RECORD_FROZEN))
    if recipes.has_all_hiddens():
        scenarios.append(Scenario("hiddens", yamls["hiddens"], keep=2))
    if ACCUMULATES:
        scenarios.append(Scenario("window", yamls["plain"], ["--grad_accumulation_factor=3"], keep=1))
    if HAS_PRECISION:
        scenarios.append(Scenario("bf16", yamls["plain"], ["--precision=bf16"], keep=2))
        both = ["--precision=bf16", "--grad_accumulation_factor=3"]
        scenarios.append(Scenario("bf16_window", yamls["plain"], both, keep=1))
    return launch.train(scenarios, folder / "patched", ddpfix=True)


def passed(results: List[Result]) -> None:
    for result in results:
        assert not result.hung and result.error is None, result.log[-3000:]
    first = results[0]
    assert first.steps and all(result.steps == first.steps and result.lr == first.lr for result in results)


def failed(results: List[Result]) -> None:
    """The error on at least one rank; one that dropped nothing waits for the others and finds them gone."""
    assert any(result.error is not None and FAILURE in result.error for result in results), results[0].log[-3000:]
    assert all(len(result.steps) <= 2 for result in results)


def flags(results: List[Result]) -> List[Tuple[bool, ...]]:
    return [tuple(wrapped["find_unused"] for wrapped in result.ddp) for result in results]


@pytest.fixture(scope="module")
def errors(patched: Results, yamls: Dict[str, Path]) -> Dict[str, float]:
    return reference.errors(reference.requests(patched, {"": yamls["plain"], **yamls}))


def test_unpatched_fails_in_the_second_step(unpatched: Results) -> None:
    failed(unpatched["plain"])
    assert flags(unpatched["plain"]) == [(False, False)] * 2


@pytest.mark.patches("speechbrain.unused")
def test_it_trains_as_one_process_would(patched: Results, errors: Dict[str, float]) -> None:
    passed(patched["plain"])
    # The small layer behind the encoder uses all of its parameters, and is not searched.
    assert flags(patched["plain"]) == [(True, False)] * 2
    assert errors["plain"] == 0.0


@pytest.mark.patches("speechbrain.unused")
def test_every_rank_skips_the_same_layers(patched: Results) -> None:
    one, other = patched["plain"]
    assert one.ran == other.ran
    assert len({tuple(layers) for layers in one.ran}) > 1


@pytest.mark.patches("speechbrain.unused")
def test_the_users_value_stays(patched: Results) -> None:
    passed(patched["flag"])
    assert flags(patched["flag"]) == [(True, True)] * 2
    assert patched["flag"][0].steps == patched["plain"][0].steps


@pytest.mark.patches("speechbrain.unused")
def test_without_layerdrop_masked_spec_embed_is_enough_to_fail(unpatched: Results, patched: Results) -> None:
    failed(unpatched["still"])
    passed(patched["still"])
    assert flags(patched["still"]) == [(True, False)] * 2
    assert "masked_spec_embed is never used with apply_spec_augment=False" in patched["still"][0].log
    passed(unpatched["flag"])
    assert patched["still"][0].steps == unpatched["flag"][0].steps


@pytest.mark.patches("speechbrain.spec_augment", "speechbrain.layerdrop")
def test_layerdrop_off_trains_without_the_flag(patched: Results, errors: Dict[str, float]) -> None:
    passed(patched["off"])
    assert flags(patched["off"]) == [(False, False)] * 2
    assert [wrapped["frozen"] for wrapped in patched["off"][0].ddp] == [["model.masked_spec_embed"], []]
    assert all(len(layers) == 4 for layers in patched["off"][0].ran)
    assert errors["off"] == 0.0


@pytest.mark.patches("speechbrain.unused")
def test_all_hidden_states(patched: Results, errors: Dict[str, float]) -> None:
    if not recipes.has_all_hiddens():
        pytest.skip("the wrapper returns the last hidden state only")
    passed(patched["hiddens"])
    assert errors["hiddens"] == 0.0


@pytest.mark.patches("speechbrain.unused")
@pytest.mark.skipif(not ACCUMULATES, reason="no accumulation before 0.5.12")
def test_accumulation(unpatched: Results, patched: Results, errors: Dict[str, float]) -> None:
    failed(unpatched["window"])
    passed(patched["window"])
    assert errors["window"] <= 2e-7


@pytest.mark.patches("speechbrain.unused")
@pytest.mark.skipif(not HAS_PRECISION, reason="no --precision before 1.0.0")
def test_bfloat16(patched: Results, errors: Dict[str, float]) -> None:
    passed(patched["bf16"])
    passed(patched["bf16_window"])
    assert errors["bf16"] == 0.0
    assert errors["bf16_window"] <= 2e-7


@pytest.mark.patches("speechbrain.unused")
def test_ranks_that_skip_differently_need_no_flag(patched: Results, errors: Dict[str, float]) -> None:
    """The first test here is the failure of it; the reference runs the layers that ran on each rank's batches."""
    one, other = patched["late_unequal"]
    passed([one, other])
    assert flags([one, other]) == [(False, False)] * 2
    assert FINALIZED in one.log + other.log
    assert any(len(layers) < 4 for result in (one, other) for layers in result.ran) and one.ran != other.ran
    assert errors["late_unequal"] == 0.0


@pytest.mark.patches("speechbrain.unused")
def test_the_users_value_stays_under_late(patched: Results, errors: Dict[str, float]) -> None:
    passed(patched["late_flag"])
    assert flags(patched["late_flag"]) == [(True, True)] * 2
    assert FINALIZED not in patched["late_flag"][0].log + patched["late_flag"][1].log
    assert errors["late_flag"] == 0.0


@pytest.mark.patches("speechbrain.unused")
@pytest.mark.skipif(not ACCUMULATES, reason="no accumulation before 0.5.12")
def test_accumulation_needs_no_flag(patched: Results, errors: Dict[str, float]) -> None:
    passed(patched["late_window"])
    assert flags(patched["late_window"]) == [(False, False)] * 2
    assert errors["late_window"] <= 2e-7


@pytest.mark.patches("speechbrain.unused")
def test_an_explicit_no_stays_and_is_logged(patched: Results) -> None:
    failed(patched["refused"])
    assert flags(patched["refused"]) == [(False, False)] * 2
    assert "find_unused_parameters=False is your own setting and stays" in patched["refused"][0].log


@pytest.mark.patches("speechbrain.unused")
def test_a_brain_that_rewrites_on_fit_start(patched: Results) -> None:
    passed(patched["rewritten"])
    assert flags(patched["rewritten"]) == [(True, False)] * 2
    assert patched["rewritten"][0].steps == patched["plain"][0].steps


@pytest.mark.patches("speechbrain.unused")
@pytest.mark.skipif(release < Version("1.1.0"), reason="there is one place")
def test_the_old_place_of_the_wrappers(patched: Results, errors: Dict[str, float]) -> None:
    passed(patched["old_place"])
    assert patched["old_place"][0].steps == patched["plain"][0].steps[: len(patched["old_place"][0].steps)]
    assert errors["old_place"] == 0.0
    passed(patched["frozen_old_place"])
    assert set(patched["frozen_old_place"][0].notes["frozen_modes"]) == {False}


@pytest.mark.patches("speechbrain.unused")
def test_without_the_patch_it_fails_as_before(patched: Results) -> None:
    failed(patched["switched_off"])


@pytest.mark.patches("speechbrain.frozen")
def test_a_frozen_extractor_keeps_all_of_its_layers(unpatched: Results, patched: Results) -> None:
    for results in (unpatched["frozen"], patched["frozen"], patched["frozen_unpatched"]):
        passed(results)
    # Nothing in it is trained, and nothing of it is wrapped.
    assert [wrapped["module"] for wrapped in patched["frozen"][0].ddp] == ["Linear"]
    assert "is frozen and stays in eval mode" in patched["frozen"][0].log
    notes = [results[0].notes for results in (unpatched["frozen"], patched["frozen"], patched["frozen_unpatched"])]
    assert [min(note["frozen_layers"]) < 4 for note in notes] == [True, False, True]
    assert [set(note["frozen_modes"]) for note in notes] == [{True}, {False}, {True}]
