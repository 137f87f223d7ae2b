"""Parameters without gradient under DDP without the flag: plain torch fails, and with ddpfix gradients are exact."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import pytest

from tests.late import launch
from tests.late.cases import CASES
from tests.late.launch import Scenario

pytestmark = pytest.mark.patches("torch.finalize")
FAILURE = "Expected to have finished reduction in the prior iteration"
# Where a product with 1/3 rounds, and bf16 as it is.
CLOSE = 2e-7
THREE = ("Plain", "Many", "Experts", "Accumulating", "Reentrant", "TwoLosses", "OneOfTwo", "Freezing", "CutOff")
HOOKS = ("allreduce_hook", "fp16_compress_hook")
STEADY = [name for name in CASES if name.startswith("Steady")]
Ranks = List[Tuple[str, Optional[Dict[str, Any]]]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    late = {"unused": "late"}
    plans = [Scenario(f"plain-{name}", case=name, steps=2, timeout=6) for name in CASES]
    plans += [Scenario(f"late-{name}", case=name, settings=late) for name in CASES]
    plans += [Scenario(f"three-{name}", case=name, settings=late, size=3) for name in THREE]
    plans += [Scenario(f"auto-{name}", case=name, settings={}) for name in ("Plain", "Full")]
    plans += [Scenario(f"late-{hook}", case="Plain", settings=late, hook=hook) for hook in HOOKS]
    plans += [Scenario("find-Plain", case="Plain", settings={"unused": "find"})]
    plans += [Scenario(f"static-{name}", case=name, settings={"unused": "static"}) for name in [*STEADY, "Branch"]]
    # Other blocks in each step.
    plans += [Scenario("static-Plain", case="Plain", settings={"unused": "static"}, timeout=8)]
    declared = {"static_graph": True}
    plans += [Scenario("plain-static-Accumulating", case="Accumulating", ddp=declared, steps=2, timeout=8)]
    return launch.train(plans, tmp_path_factory.mktemp("exact"))


def well(ranks: Ranks, close: float = CLOSE) -> List[Dict[str, Any]]:
    records = []
    for log, record in ranks:
        assert record is not None and record["error"] is None, log
        assert record["gradients"] <= close and record["parameters"] <= close and record["apart"] == 0.0, record
        records.append(record)
    return records


@pytest.mark.parametrize("name", [name for name in CASES if name != "Full"])
def test_plain_torch_fails(outcomes: Dict[str, Ranks], name: str) -> None:
    ends = [record["error"] or "" for _, record in outcomes[f"plain-{name}"] if record is not None]
    assert any(FAILURE in end for end in ends), outcomes[f"plain-{name}"]


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_mean_of_the_ranks(outcomes: Dict[str, Ranks], name: str) -> None:
    records = well(outcomes[f"late-{name}"])
    assert [record["flag"] for record in records] == [False, False]
    assert [record["steps"] for record in records] == [6, 6]
    # None has no gradient that has one in the reference; a gradient of zeros would move it by momentum.
    assert {record["none"] for record in records} == {0}


@pytest.mark.parametrize("name", THREE)
def test_three_ranks(outcomes: Dict[str, Ranks], name: str) -> None:
    assert len(well(outcomes[f"three-{name}"])) == 3


def test_nothing_is_said_where_nothing_is_unused(outcomes: Dict[str, Ranks]) -> None:
    well(outcomes["plain-Full"])
    well(outcomes["auto-Full"])
    assert "got no gradient" not in outcomes["auto-Full"][0][0]


def test_by_default_a_model_that_would_fail_trains_and_one_line_says_so(outcomes: Dict[str, Ranks]) -> None:
    assert [record["flag"] for record in well(outcomes["auto-Plain"])] == [False, False]
    first, second = (log for log, _ in outcomes["auto-Plain"])
    assert first.count("parameters of Stack (blocks.") == 1 and "got no gradient" not in second
    assert "ddpfix trains on without them, as find_unused_parameters=True does" in first and "weight decay" not in first


def test_the_flag_is_set_where_it_is_asked_for(outcomes: Dict[str, Ranks]) -> None:
    assert [record["flag"] for record in well(outcomes["find-Plain"])] == [True, True]


@pytest.mark.parametrize("name", [*STEADY, "Branch"])
def test_the_same_parameters_in_each_step(outcomes: Dict[str, Ranks], name: str) -> None:
    for record in well(outcomes[f"static-{name}"]):
        # What no rank ever uses has no gradient, as in the reference.
        assert record["static"] and not record["flag"] and record["none"] == 0


def test_torch_cannot_take_a_graph_for_static_that_begins_with_no_sync(outcomes: Dict[str, Ranks]) -> None:
    """Why the advice does not name static_graph where gradients are accumulated."""
    ends = [record["error"] or "" for _, record in outcomes["plain-static-Accumulating"] if record is not None]
    words = ("expect_autograd_hooks_ INTERNAL ASSERT", "Encountered gradient which is undefined")
    assert any(word in end for word in words for end in ends), ends


def test_a_graph_that_is_not_static_ends_in_an_error(outcomes: Dict[str, Ranks]) -> None:
    ends = [record["error"] or "" for _, record in outcomes["static-Plain"] if record is not None]
    assert any("Your training graph has changed" in end or FAILURE in end for end in ends), ends


@pytest.mark.parametrize("hook", HOOKS)
def test_communication_hooks(outcomes: Dict[str, Ranks], hook: str) -> None:
    well(outcomes[f"late-{hook}"], CLOSE if hook == "allreduce_hook" else 2e-4)
