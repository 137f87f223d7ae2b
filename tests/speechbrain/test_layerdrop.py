"""SpeechBrain's own encoders: every rank skips the same layers, with the gradients of a single process."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

import pytest
from packaging.version import Version

from tests.speechbrain import launch, recipes, reference
from tests.speechbrain.launch import Result, Scenario

release = recipes.release()
pytestmark = pytest.mark.skipif(Version("0.5.14") > release, reason="no encoder of SpeechBrain's own skips layers")
FAILURE = "Expected to have finished reduction in the prior iteration"
HOME = "speechbrain.lobes.models.transformer"
SIZES = ["num_layers: 4", "d_model: 16", "nhead: 2", "dropout: 0.1"]
SKIPS = "layerdrop_prob: 0.5"
ENCODERS: Dict[str, List[str]] = {
    "transformer": [f"!new:{HOME}.Transformer.TransformerEncoder", "d_ffn: 24", SKIPS, *SIZES]
}
if Version("1.0.2") <= release:
    ENCODERS["conformer"] = [f"!new:{HOME}.Conformer.ConformerEncoder", "d_ffn: 24", "kernel_size: 3", SKIPS, *SIZES]
    ENCODERS["branchformer"] = [f"!new:{HOME}.Branchformer.BranchformerEncoder", "kernel_size: 3", SKIPS, *SIZES]
    for lines in (ENCODERS["conformer"], ENCODERS["branchformer"]):
        lines.append("attention_type: regularMHA")
    ENCODERS["branchformer"].append("csgu_linear_units: 24")
if Version("1.0.3") <= release:
    ENCODERS["beats"] = ["!apply:tests.speechbrain.networks.beats", "layerdrop: 0.5"]
# What augmentation does in a recipe: one rank draws more than the other. And the states of the generators are noted.
UNEQUAL_USE = """
import hashlib, random
import numpy, torch
from speechbrain.core import Brain
original = Brain.fit_batch
states = recorder.record.setdefault("states", [])

def fit_batch(self, batch):
    if rank == 1:
        torch.rand(1), numpy.random.random(), random.random()
    result = original(self, batch)
    streams = torch.get_rng_state().numpy(), numpy.random.get_state()[1]
    states.append([hashlib.sha256(stream.tobytes()).hexdigest()[:16] for stream in streams])
    return result

Brain.fit_batch = fit_batch
"""
Results = Dict[str, List[Result]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layerdrop")


@pytest.fixture(scope="module")
def yamls(folder: Path) -> Dict[str, Path]:
    made = {}
    for name, (kind, *arguments) in ENCODERS.items():
        for silent in (False, True):
            given = [line.replace("0.1", "0.0") if silent else line for line in arguments]
            inner = "\n        ".join([f"encoder: {kind}", *given])
            own = f"!new:tests.speechbrain.networks.Layered\n    {inner}"
            key = f"{name}_silent" if silent else name
            made[key] = recipes.write(folder, f"{key}.yaml", own)
    return made


@pytest.fixture(scope="module")
def unpatched(folder: Path, yamls: Dict[str, Path]) -> Results:
    flag = ["--find_unused_parameters"]
    scenarios = [Scenario(name, yamls[name], flag, before=UNEQUAL_USE) for name in ENCODERS]
    scenarios += [Scenario(f"{name}_plain", yamls[name], timeout=20) for name in ["transformer"]]
    scenarios += [Scenario(f"{name}_silent", yamls[f"{name}_silent"], flag, before=UNEQUAL_USE) for name in ENCODERS]
    return launch.train(scenarios, folder / "unpatched", ddpfix=False)


@pytest.fixture(scope="module")
def patched(folder: Path, yamls: Dict[str, Path]) -> Results:
    scenarios = [Scenario(name, yamls[name], before=UNEQUAL_USE) for name in ENCODERS]
    for name in ENCODERS:
        scenarios.append(Scenario(f"{name}_silent", yamls[f"{name}_silent"], before=UNEQUAL_USE, keep=3))
        scenarios.append(Scenario(f"{name}_silent_off", yamls[f"{name}_silent"], settings={"layerdrop": "off"}, keep=2))
    scenarios.append(Scenario("again", yamls["transformer"], before=UNEQUAL_USE))
    scenarios.append(Scenario("seeded", yamls["transformer"], settings={"seed": "5"}))
    shipped = {"layerdrop": "stock"}
    silent = yamls["transformer_silent"]
    scenarios.append(Scenario("transformer_silent_shipped", silent, settings=shipped, before=UNEQUAL_USE, keep=3))
    late = {"unused": "late", **shipped}
    scenarios.append(Scenario("transformer_silent_late", silent, settings=late, before=UNEQUAL_USE, keep=3))
    return launch.train(scenarios, folder / "patched", ddpfix=True)


def passed(results: List[Result]) -> None:
    for result in results:
        assert not result.hung and result.error is None, result.log[-3000:]
    assert len(results[0].steps) == 3 and results[0].steps == results[1].steps


@pytest.fixture(scope="module")
def errors(patched: Results, yamls: Dict[str, Path]) -> Dict[str, float]:
    return reference.errors(reference.requests(patched, yamls))


def test_unpatched_fails_without_the_flag(unpatched: Results) -> None:
    assert any(FAILURE in str(result.error) for result in unpatched["transformer_plain"]), unpatched[
        "transformer_plain"
    ][0].log


@pytest.mark.patches("speechbrain.layerdrop")
@pytest.mark.parametrize("name", ENCODERS)
def test_ranks_skip_the_same_layers(name: str, unpatched: Results, patched: Results) -> None:
    passed(unpatched[name])
    passed(patched[name])
    one, other = unpatched[name]
    assert one.ran != other.ran
    one, other = patched[name]
    assert one.ran == other.ran
    assert len({tuple(layers) for layers in one.ran}) > 1
    assert [wrapped["find_unused"] for wrapped in one.ddp] == [True, False]


@pytest.mark.patches("speechbrain.layerdrop")
@pytest.mark.parametrize("name", ENCODERS)
def test_gradients_are_those_of_one_process(name: str, patched: Results, errors: Dict[str, float]) -> None:
    passed(patched[f"{name}_silent"])
    assert errors[f"{name}_silent"] == 0.0


@pytest.mark.patches("speechbrain.layerdrop")
@pytest.mark.parametrize("name", ENCODERS)
def test_random_streams_advance_as_without_ddpfix(name: str, unpatched: Results, patched: Results) -> None:
    # Recipes before 1.0.2 leave numpy without a seed.
    last = 1 if Version("1.0.2") > release else 2
    streams = [
        [[state[:last] for state in result.notes["states"]] for result in results[f"{name}_silent"]]
        for results in (unpatched, patched)
    ]
    # The two ranks use the streams differently, and go on doing so.
    assert streams[0] == streams[1] and streams[0][0] != streams[0][1]


@pytest.mark.patches("speechbrain.layerdrop")
@pytest.mark.parametrize("name", ENCODERS)
def test_off_skips_nothing_and_needs_no_flag(name: str, patched: Results, errors: Dict[str, float]) -> None:
    results = patched[f"{name}_silent_off"]
    passed(results)
    assert all(len(layers) == 4 for layers in results[0].ran)
    assert [wrapped["find_unused"] for wrapped in results[0].ddp] == [False, False]
    assert errors[f"{name}_silent_off"] == 0.0


@pytest.mark.patches("speechbrain.layerdrop")
def test_the_seed_decides(patched: Results) -> None:
    assert patched["again"][0].ran == patched["transformer"][0].ran
    passed(patched["seeded"])
    assert patched["seeded"][0].ran != patched["transformer"][0].ran


@pytest.mark.patches("speechbrain.layerdrop")
def test_as_shipped_ranks_differ_and_gradients_are_right(patched: Results, errors: Dict[str, float]) -> None:
    """With the flag, a layer that ran on one rank only counts half: as without ddpfix, and as one process has it."""
    one, other = patched["transformer_silent_shipped"]
    passed([one, other])
    assert one.ran != other.ran
    assert errors["transformer_silent_shipped"] == 0.0


@pytest.mark.patches("speechbrain.layerdrop")
def test_as_shipped_without_the_flag(patched: Results, errors: Dict[str, float]) -> None:
    """What fails unpatched (the first test here) trains where DDP's reduction is finalized after each backward."""
    one, other = patched["transformer_silent_late"]
    passed([one, other])
    assert [wrapped["find_unused"] for result in (one, other) for wrapped in result.ddp] == [False] * 4
    assert one.ran != other.ran
    assert errors["transformer_silent_late"] == 0.0
    assert "ddpfix trains on without them, as find_unused_parameters=True does" in one.log
