"""NeMo's conformer encoder on two real ranks: a dropped layer is not computed, and the result is NeMo's."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest

from tests.nemo import models
from tests.skipping import built, stacks
from tests.skipping.compared import OF_ANY_ORIGIN, Found, both
from tests.skipping.stacks import Scenario

pytestmark = pytest.mark.patches("nemo.depth")
HOME = "tests.nemo.models"
NAMES = list(models.MODELS)
DECIDED = {"false": {"find_unused_parameters": False}, "static": {"static_graph": True}}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    plans: List[Scenario] = []
    for name in NAMES:
        plans += [
            Scenario(f"plain {name}", models=HOME, model=name),
            Scenario(f"ours {name}", models=HOME, model=name, settings=OF_ANY_ORIGIN),
            Scenario(f"off {name}", models=HOME, model=name, settings={"layerdrop": "off"}),
            Scenario(f"switched {name}", models=HOME, model=name, settings={"nemo_depth": "0"}),
        ]
    # What a program may have decided, since in NeMo every parameter has a gradient; FSDP wants those that are computed.
    for name, more in DECIDED.items():
        plans.append(Scenario(f"plain {name}", models=HOME, model="uniform", more=more))
        plans.append(Scenario(f"ours {name}", models=HOME, model="uniform", more=more, settings={}))
    plans += [
        Scenario("plain fsdp", models=HOME, model="uniform", wrapper="fsdp"),
        Scenario("ours fsdp", models=HOME, model="uniform", wrapper="fsdp", settings={}),
        Scenario("plain lightning", models=HOME, model="uniform", wrapper="own"),
        Scenario("ours lightning", models=HOME, model="uniform", wrapper="own", settings={}),
    ]
    return stacks.train(plans, tmp_path_factory.mktemp("nemo"))


def as_shipped(record: Dict[str, Any], model: Callable[[], built.Built]) -> None:
    """The steps of a rank are those of NeMo's own code, whose draws drop the layers that did not run."""
    built.seed(0)
    for ours, theirs in zip(record["steps"], models.as_shipped(model(), record["ran"], 2)):
        assert ours == pytest.approx(theirs, rel=2e-5, abs=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_nemo_computes_every_layer(found: Found, name: str) -> None:
    for record in both(found, f"plain {name}"):
        assert [len(ran) for ran in record["ran"]] == [models.LAYERS] * built.STEPS


@pytest.mark.parametrize("name", NAMES)
def test_what_is_dropped_is_not_computed_on_any_rank(found: Found, name: str) -> None:
    first, second = both(found, f"ours {name}")
    assert first["ran"] == second["ran"]
    assert 3 < sum(models.LAYERS - len(ran) for ran in first["ran"]) < 25
    # The first layer has no rate.
    assert all(0 in ran for ran in first["ran"])


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_nemos_own(found: Found, name: str) -> None:
    first = both(found, f"ours {name}")[0]
    as_shipped(first, models.MODELS[name])


def test_under_lightnings_trainer_it_is_the_same(found: Found) -> None:
    for record in both(found, "plain lightning"):
        assert [len(ran) for ran in record["ran"]] == [models.LAYERS] * built.STEPS
    first, second = both(found, "ours lightning")
    assert first["ran"] == second["ran"] and sum(models.LAYERS - len(ran) for ran in first["ran"]) > 3
    as_shipped(first, models.conformer)


@pytest.mark.parametrize("name", DECIDED)
def test_a_program_without_the_flag_trains_as_in_nemo(found: Found, name: str) -> None:
    """It was right, and it is: dropped layers have gradients of zeros, and nothing is said of its choice."""
    both(found, f"plain {name}")
    first, second = both(found, f"ours {name}")
    assert first["ran"] == second["ran"] and sum(models.LAYERS - len(ran) for ran in first["ran"]) > 3
    as_shipped(first, models.conformer)
    assert not any(words in log for log, _ in found[f"ours {name}"] for words in ("own setting", "cannot work"))


def test_under_fsdp_it_is_nemo_as_shipped(found: Found) -> None:
    plain, ours = found["plain fsdp"], found["ours fsdp"]
    assert plain[0][1]["error"] is None, plain[0][0]
    assert [(rank["ran"], rank["steps"]) for _, rank in ours] == [(rank["ran"], rank["steps"]) for _, rank in plain]
    assert not any("skip the same layers" in log for log, _ in ours)


@pytest.mark.patches("nemo.depth")
@pytest.mark.parametrize("name", NAMES)
def test_off_drops_and_scales_nothing(found: Found, name: str) -> None:
    """The steps are those of an encoder without a rate."""
    first = both(found, f"off {name}")[0]
    assert [len(ran) for ran in first["ran"]] == [models.LAYERS] * built.STEPS
    as_shipped(first, lambda: models.conformer(0.0))


@pytest.mark.parametrize("name", NAMES)
def test_switched_off_it_is_nemo_as_shipped(found: Found, name: str) -> None:
    assert [r["steps"] for r in both(found, f"switched {name}")] == [r["steps"] for r in both(found, f"plain {name}")]
