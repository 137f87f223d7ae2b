"""The reported failure and its two published fixes, on two ranks through SpeechBrain's own Brain (issue 2340)."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Tuple

import pytest
from packaging.version import Version

from tests.speechbrain import launch, recipes
from tests.speechbrain.launch import Result, Scenario
from tests.support.results import well
from tests.support.scenario import sides

release = recipes.release()
FAILURE = "Expected to have finished reduction in the prior iteration"
ACCUMULATES = Version("0.5.12") <= release
TWO_PLACES = Version("1.1.0") <= release
FLAG, WINDOW = ["--find_unused_parameters"], ["--grad_accumulation_factor=2"]
SWITCHED_OFF = {"speechbrain.unused": "0", "torch.finalize": "0"}
FINALIZED = "ddpfix trains on, as find_unused_parameters=True does"
Results = Dict[str, List[Result]]
REWRITTEN = """import torch


class ASR(sb.Brain):
    def on_fit_start(self):
        self._wrap_distributed()
        self.init_optimizers()
        kinds = [isinstance(module, torch.nn.parallel.DistributedDataParallel) for module in self.modules.values()]
        assert kinds == [True, True], kinds

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


def yamls(folder: Path) -> Dict[str, Path]:
    """The recipe as it is, without LayerDrop, and frozen; each by both places of the wrappers."""
    write, pretrained = recipes.write, recipes.pretrained
    made = {
        "plain": write(folder),
        "still": write(folder, "still.yaml", pretrained(folder, {"layerdrop": 0.0})),
        "frozen": write(folder, "frozen.yaml", pretrained(folder, freeze=True)),
    }
    if TWO_PLACES:
        made["old_place"] = write(folder, "old.yaml", pretrained(folder, home_of=recipes.OLD_PLACE))
        frozen = pretrained(folder, home_of=recipes.OLD_PLACE, freeze=True)
        made["frozen_old_place"] = write(folder, "frozen_old.yaml", frozen)
    return made


def rewritten(folder: Path) -> Path:
    """A recipe with an ``on_fit_start`` of its own, which looks for DDP as recipes do."""
    script = folder / "rewritten.py"
    script.write_text(recipes.TRAIN.read_text().replace("class ASR(sb.Brain):\n", REWRITTEN, 1))
    return script


def scenarios(folder: Path, ddpfix: bool) -> List[Scenario]:
    files, limit = yamls(folder), 60 if ddpfix else 30
    plans = [
        Scenario("plain", files["plain"], timeout=limit),
        Scenario("still", files["still"], timeout=limit),
        Scenario("frozen", files["frozen"], before=RECORD_FROZEN),
        Scenario("flag", files["plain" if ddpfix else "still"], FLAG),
    ]
    if ACCUMULATES:
        plans.append(Scenario("window", files["still"], WINDOW, timeout=limit))
    if not ddpfix:
        return [*plans, *([Scenario("window_flag", files["still"], [*WINDOW, *FLAG])] if ACCUMULATES else [])]
    plans += [
        Scenario("off", files["plain"], settings={"layerdrop": "off"}),
        Scenario("frozen_unpatched", files["frozen"], settings={"speechbrain.frozen": "0"}, before=RECORD_FROZEN),
        Scenario("refused", files["plain"], ["--find_unused_parameters=False"], timeout=30),
        Scenario("rewritten", files["plain"], script=rewritten(folder)),
        Scenario("switched_off", files["plain"], settings=SWITCHED_OFF, timeout=30),
    ]
    if TWO_PLACES:
        plans.append(Scenario("old_place", files["old_place"]))
        plans.append(Scenario("frozen_old_place", files["frozen_old_place"], before=RECORD_FROZEN))
    return plans


unpatched, patched = sides(launch.train, scenarios)


def passed(results: List[Result]) -> None:
    well(results)
    first = results[0]
    assert first.steps and all(result.steps == first.steps and result.lr == first.lr for result in results)


def failed(results: List[Result]) -> None:
    """The error on at least one rank; one that dropped nothing waits for the others and finds them gone."""
    assert any(result.error is not None and FAILURE in result.error for result in results), results[0].log[-3000:]
    assert all(len(result.steps) <= 2 for result in results)


def flags(results: List[Result]) -> List[Tuple[bool, ...]]:
    return [tuple(wrapped["find_unused"] for wrapped in result.ddp) for result in results]


def test_unpatched_fails_in_the_second_step(unpatched: Results) -> None:
    failed(unpatched["plain"])
    assert flags(unpatched["plain"]) == [(False, False)] * 2


@pytest.mark.patches("speechbrain.unused")
def test_ranks_skip_the_same_layers(patched: Results) -> None:
    """That gradients are right then is shown in tests/layerdrop and tests/late, for each family of transformers."""
    one, other = patched["plain"]
    assert one.ran == other.ran and len({tuple(layers) for layers in one.ran}) > 1


# By name: whether it fails without ddpfix, the flags of both models, the run that it equals, and what is said. The
# small layer behind the encoder uses all of its parameters, and is not searched.
TRAINS: Dict[str, Tuple[bool, Tuple[bool, bool], str, str]] = {
    "plain": (True, (True, False), "patched flag", ""),
    "flag": (False, (True, True), "patched plain", ""),
    # There masked_spec_embed is enough to fail.
    "still": (True, (False, False), "unpatched flag", FINALIZED),
    # As the release trains a model without LayerDrop.
    "off": (False, (False, False), "unpatched flag", ""),
    "window": (True, (False, False), "unpatched window_flag", ""),
    "rewritten": (False, (True, False), "patched plain", ""),
    "old_place": (False, (True, False), "patched plain", ""),
}


@pytest.mark.patches("speechbrain.unused", "speechbrain.layerdrop")
@pytest.mark.parametrize("name", TRAINS)
def test_it_trains(unpatched: Results, patched: Results, name: str) -> None:
    if name not in patched:
        pytest.skip("no accumulation before 0.5.12, one place of the wrappers before 1.1.0")
    fails, given, reference, said = TRAINS[name]
    if fails:
        failed(unpatched[name])
        assert flags(unpatched[name]) == [(False, False)] * 2
    side, _, other = reference.partition(" ")
    equal = (patched if side == "patched" else unpatched)[other]
    passed(patched[name])
    passed(equal)
    assert flags(patched[name]) == [given] * 2
    assert patched[name][0].steps == equal[0].steps
    assert said in patched[name][0].log


@pytest.mark.patches("speechbrain.unused", "speechbrain.layerdrop")
def test_off_keeps_all_layers(patched: Results) -> None:
    assert all(len(layers) == 4 for layers in patched["off"][0].ran)


@pytest.mark.patches("speechbrain.unused")
def test_an_explicit_no_stays_and_is_logged(patched: Results) -> None:
    failed(patched["refused"])
    assert flags(patched["refused"]) == [(False, False)] * 2
    assert "find_unused_parameters=False is your own setting and stays" in patched["refused"][0].log


@pytest.mark.patches("speechbrain.unused")
def test_without_the_patch_it_fails_as_before(patched: Results) -> None:
    failed(patched["switched_off"])


@pytest.mark.patches("torch.diagnosis")
def test_the_line_of_the_diagnosis_is_the_option(patched: Results) -> None:
    """That it cures is shown by ``flag``."""
    errors = [str(result.error) for result in patched["switched_off"] if FAILURE in str(result.error)]
    for error in errors:
        assert "masked_spec_embed" in error or "encoder.layers." in error
        assert "in SpeechBrain, paste this line" in error and [error.rstrip().splitlines()[-1].strip()] == FLAG


@pytest.mark.patches("speechbrain.frozen")
def test_a_frozen_extractor_keeps_all_of_its_layers(unpatched: Results, patched: Results) -> None:
    for results in (unpatched["frozen"], patched["frozen"], patched["frozen_unpatched"]):
        passed(results)
    # Nothing in it is trained, and nothing of it is wrapped.
    assert [wrapped["module"] for wrapped in patched["frozen"][0].ddp] == ["Linear"]
    assert "is frozen, so ddpfix keeps it in eval mode" in patched["frozen"][0].log
    notes = [results[0].notes for results in (unpatched["frozen"], patched["frozen"], patched["frozen_unpatched"])]
    assert [min(note["frozen_layers"]) < 4 for note in notes] == [True, False, True]
    assert [set(note["frozen_modes"]) for note in notes] == [{True}, {False}, {True}]
    if TWO_PLACES:
        passed(patched["frozen_old_place"])
        assert set(patched["frozen_old_place"][0].notes["frozen_modes"]) == {False}
