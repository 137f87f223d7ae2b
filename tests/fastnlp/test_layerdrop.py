"""fastNLP's own BART and CPT skip the same layers on every rank, and so does a user's own code."""

from __future__ import annotations

from typing import Dict, List

import pytest

from tests.fastnlp import launch, releases
from tests.fastnlp.launch import Result, Scenario

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not releases.has_drivers(), reason="no model of these releases skips layers"),
]
Results = Dict[str, List[Result]]
MODELS = ("bart", "cpt", "own")
LAYERS = {"bart": 8, "cpt": 4, "own": 8}
FLAG = {"torch_kwargs": {"ddp_kwargs": {"find_unused_parameters": True}}}
# A common seed does not keep ranks together: rich draws from the same generator, when rank 0 logs.
LOUD = """
import random
from fastNLP import logger
random.seed(1)
logger.info("only rank 0 prints this")
"""


def scenarios() -> List[Scenario]:
    flagged = [Scenario(model, model, FLAG) for model in MODELS]
    return [*flagged, Scenario("seeded", "bart", FLAG, before=LOUD)]


@pytest.fixture(scope="module")
def unpatched(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch.train(scenarios(), tmp_path_factory.mktemp("unpatched"), ddpfix=False)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Results:
    more = [
        *(Scenario(f"{model} off", model, settings={"layerdrop": "off"}) for model in MODELS),
        Scenario("unpatched", "bart", settings={"layerdrop": "stock"}),
        Scenario("switched", "bart", settings={"fastnlp.layerdrop": "0"}),
        *(Scenario(f"seed {seed}", "bart", settings={"seed": seed}) for seed in ("5", "6")),
        Scenario("again", "bart", settings={"seed": "5"}),
        Scenario("checkpointed", "bart checkpointed", settings={"seed": "5"}),
        Scenario("default", "bart"),
    ]
    return launch.train([*scenarios(), *more], tmp_path_factory.mktemp("ours"), ddpfix=True)


def finished(results: List[Result]) -> List[List[str]]:
    """Which layers ran in each step on rank 0, of a run that came to its end with equal weights."""
    assert [result.error for result in results] == [None, None], results[0].log + results[1].log
    assert results[0].steps == results[1].steps
    assert len(results[0].steps) == len(results[0].ran) == len(results[1].ran) == 4
    return results[0].ran


@pytest.mark.patches("fastnlp.layerdrop")
@pytest.mark.parametrize("model", MODELS)
def test_ranks_skip_the_same_layers(unpatched: Results, ours: Results, model: str) -> None:
    assert finished(unpatched[model]) != unpatched[model][1].ran
    ran = finished(ours[model])
    assert ran == ours[model][1].ran
    # It is still LayerDrop: layers are skipped, and not the same ones in every step.
    assert len({tuple(step) for step in ran}) > 1
    assert 0 < sum(map(len, ran)) < 4 * LAYERS[model]


@pytest.mark.patches("fastnlp.layerdrop")
def test_a_seed_of_the_users_does_not_do_that(unpatched: Results, ours: Results) -> None:
    assert finished(unpatched["seeded"]) != unpatched["seeded"][1].ran
    assert finished(ours["seeded"]) == ours["seeded"][1].ran


@pytest.mark.patches("fastnlp.layerdrop")
@pytest.mark.parametrize("model", MODELS)
def test_off_skips_nothing(ours: Results, model: str) -> None:
    assert [len(step) for step in finished(ours[f"{model} off"])] == [LAYERS[model]] * 4


@pytest.mark.patches("fastnlp.layerdrop")
@pytest.mark.parametrize("name", ["unpatched", "switched"])
def test_only_the_fix_does_it(ours: Results, name: str) -> None:
    assert finished(ours[name]) != ours[name][1].ran


@pytest.mark.patches("fastnlp.layerdrop")
def test_decisions_follow_the_seed(ours: Results) -> None:
    assert finished(ours["seed 5"]) == finished(ours["again"])
    assert ours["seed 5"][0].steps == ours["again"][0].steps
    assert finished(ours["seed 5"]) != finished(ours["seed 6"])


@pytest.mark.patches("fastnlp.layerdrop")
def test_recomputation_repeats_the_decisions(ours: Results) -> None:
    assert finished(ours["checkpointed"]) == finished(ours["seed 5"])
    assert ours["checkpointed"][0].steps == ours["seed 5"][0].steps


@pytest.mark.patches("fastnlp.layerdrop")
def test_pythons_generator_goes_on_as_without_ddpfix(unpatched: Results, ours: Results) -> None:
    # Rank 1 logs nothing, so that what its model draws is all that moves the generator.
    assert unpatched["seeded"][1].random == ours["seeded"][1].random


@pytest.mark.patches("fastnlp.layerdrop")
def test_it_needs_no_setting(ours: Results) -> None:
    assert finished(ours["default"]) == ours["default"][1].ran
    assert ours["default"][0].ddp[0]["find_unused_parameters"]
