"""Gradient checkpointing of the encoder where DDP looks for unused parameters: the kind that can train is used.

With the reentrant kind torch raises "Expected to mark a variable ready only once" in the first backward (transformers
issue 30113); SpeechBrain's own wrapper switches checkpointing off for that reason, and users switch it on again.
"""

from __future__ import annotations

from importlib.metadata import version as installed
from pathlib import Path
from typing import Dict, List

import pytest
from packaging.version import Version

from tests.speechbrain import launch, recipes, reference
from tests.speechbrain.launch import Result, Scenario

release = recipes.release()
# Whether the user can choose the kind; before, transformers leaves it to torch, whose default is the reentrant one.
CHOOSES = Version(installed("transformers")) >= Version("4.35")
FAILURE = "Expected to mark a variable ready only once"
KINDS = ["reentrant", "non_reentrant"] if CHOOSES else ["default"]
pytestmark = pytest.mark.skipif(Version("0.5.12") > release, reason="the wrapper knows no WavLM before 0.5.12")
Results = Dict[str, List[Result]]
FLAG = ["--find_unused_parameters"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpointing")


@pytest.fixture(scope="module")
def yamls(folder: Path) -> Dict[str, Path]:
    still = recipes.pretrained(folder, {"layerdrop": 0.0})
    made = {}
    for kind in KINDS:
        made[kind] = recipes.write(folder, f"{kind}.yaml", gradient_checkpointing=kind)
        made[f"{kind}_still"] = recipes.write(folder, f"{kind}_still.yaml", still, gradient_checkpointing=kind)
    other = recipes.pretrained(folder, {"layerdrop": 0.0}, "wav2vec2")
    made["wav2vec2"] = recipes.write(folder, "wav2vec2.yaml", other, gradient_checkpointing=KINDS[0])
    return made


@pytest.fixture(scope="module")
def unpatched(folder: Path, yamls: Dict[str, Path]) -> Results:
    scenarios = [Scenario(name, yaml, FLAG, timeout=30) for name, yaml in yamls.items()]
    return launch.train(scenarios, folder / "unpatched", ddpfix=False)


@pytest.fixture(scope="module")
def patched(folder: Path, yamls: Dict[str, Path]) -> Results:
    scenarios = [Scenario(name, yaml, keep=2) for name, yaml in yamls.items()]
    scenarios += [Scenario(f"{name}_flag", yaml, FLAG, keep=1) for name, yaml in yamls.items()]
    scenarios += [Scenario(f"{kind}_off", yamls[kind], settings={"layerdrop": "off"}, keep=1) for kind in KINDS]
    if Version("1.0.0") <= release:
        both = ["--precision=bf16", "--grad_accumulation_factor=3"]
        scenarios.append(Scenario("bf16_window", yamls[KINDS[0]], both, keep=1))
    return launch.train(scenarios, folder / "patched", ddpfix=True)


def passed(results: List[Result]) -> None:
    for result in results:
        assert not result.hung and result.error is None, result.log[-3000:]
    assert results[0].steps and results[0].steps == results[1].steps


@pytest.fixture(scope="module")
def errors(patched: Results, yamls: Dict[str, Path]) -> Dict[str, float]:
    return reference.errors(reference.requests(patched, {"": yamls[KINDS[0]], **yamls}))


@pytest.mark.parametrize("kind", KINDS)
def test_unpatched_trains_with_the_non_reentrant_kind_only(kind: str, unpatched: Results) -> None:
    for results in (unpatched[kind], unpatched[f"{kind}_still"]):
        if kind == "non_reentrant":
            passed(results)
        else:
            assert all(FAILURE in str(result.error) and not result.steps for result in results), results[0].log[-3000:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["", "_still", "_flag", "_still_flag"])
def test_every_kind_trains(kind: str, case: str, patched: Results, errors: Dict[str, float]) -> None:
    results = patched[f"{kind}{case}"]
    passed(results)
    assert all(wrapped["find_unused"] for wrapped in results[0].ddp[:1])
    assert results[0].ran == results[1].ran
    assert errors[f"{kind}{case}"] == 0.0
    if kind == "reentrant":
        # WavLM gets it when checkpointing is switched on: there the reentrant kind may never end its backward.
        assert "use_reentrant=False" in results[0].log


@pytest.mark.parametrize("kind", KINDS)
def test_without_layerdrop_and_flag(kind: str, patched: Results, errors: Dict[str, float]) -> None:
    results = patched[f"{kind}_off"]
    passed(results)
    assert not results[0].ddp[0]["find_unused"]
    # Without the flag the reentrant kind stays, which adds up the position bias's gradients in another order.
    assert errors[f"{kind}_off"] <= (0.0 if CHOOSES else 2e-6)


def test_masked_spec_embed_alone_is_a_reason(unpatched: Results, patched: Results, errors: Dict[str, float]) -> None:
    """No layer is skipped, and DDP has the flag for a parameter that is never used."""
    assert all(FAILURE in str(result.error) for result in unpatched["wav2vec2"]), unpatched["wav2vec2"][0].log[-3000:]
    results, flagged = patched["wav2vec2"], patched["wav2vec2_flag"]
    for each in (results, flagged):
        passed(each)
    # The flag is left out where a model tells that its checkpointing is of the kind that excludes it.
    assert results[0].ddp[0]["find_unused"] is not CHOOSES and flagged[0].ddp[0]["find_unused"]
    assert errors["wav2vec2"] == errors["wav2vec2_flag"] == 0.0
    assert ("find_unused_parameters is left out: reentrant gradient checkpointing" in results[0].log) == CHOOSES
    assert "checkpointing is now non-reentrant" in flagged[0].log or not CHOOSES


@pytest.mark.skipif(Version("1.0.0") > release, reason="no --precision before 1.0.0")
def test_bfloat16_with_accumulation(patched: Results, errors: Dict[str, float]) -> None:
    passed(patched["bf16_window"])
    assert errors["bf16_window"] <= 2e-7
