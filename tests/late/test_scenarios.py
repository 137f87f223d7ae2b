"""What ddpfix leaves to torch, what it does where it cannot do its work, and ``DDPFIX_UNUSED=static``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest
from ddpfix.patches.torch.internals import reducer

from tests.late.launch import FAILURE, Ranks, Scenario, ends, steps
from tests.late.loops import launch as loops
from tests.late.loops.verdict import verdict

pytestmark = pytest.mark.patches("torch.finalize")
STEADY = ("steady_skipping", "steady_views_skipping", "steady_reentrant_skipping")


def plans(folder: Path) -> List[Scenario]:
    names = ("static", "other_model_dropped", "parameter_returned", "optimizer_within")
    plans = [Scenario(name, function=name, settings={}) for name in names]
    plans += [Scenario(f"plain-{name}", function=name) for name in ("static_under_no_sync", "optimizer_within")]
    plans += [Scenario("forced", function="explicit_false", settings={"unused": "late"})]
    plans += [
        Scenario(f"cannot_finalize_{word}", function="cannot_finalize", settings={"unused": word})
        for word in ("auto", "late")
    ]
    return plans


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    """Programs under the setting, beside gradients that are averaged by hand."""
    plans = loops.scenarios((*STEADY, "momentum_skipping"), ("hand", "static"), [2])
    return loops.train(plans, tmp_path_factory.mktemp("static"))


@pytest.mark.parametrize("name", STEADY)
def test_the_same_parameters_in_each_step_are_static(static: Dict[str, Ranks], name: str) -> None:
    found = verdict(static[f"{name}-static-2"], static[f"{name}-hand-2"], 0.0)
    assert found.outcome == "right", found


def test_a_graph_that_is_not_static_ends_in_an_error(static: Dict[str, Ranks]) -> None:
    found = ends(static["momentum_skipping-static-2"])
    assert any("Your training graph has changed" in end or FAILURE in end for end in found), found


def test_torch_cannot_take_a_graph_for_static_that_begins_with_no_sync(outcomes: Dict[str, Ranks]) -> None:
    """Why the advice does not name static_graph where gradients are accumulated."""
    found = ends(outcomes["plain-static_under_no_sync"])
    words = ("expect_autograd_hooks_ INTERNAL ASSERT", "Encountered gradient which is undefined")
    assert any(word in end for word in words for end in found), found


def test_the_end_of_another_model_leaves_a_pending_reduction(outcomes: Dict[str, Ranks]) -> None:
    one, other = steps(outcomes["other_model_dropped"], "weights")
    assert one == other


@pytest.mark.skipif(not reducer.AT_ANY_TIME, reason="before torch 2.1 the reducer has no check")
@pytest.mark.parametrize("name", ["cannot_finalize_auto", "cannot_finalize_late"])
def test_what_cannot_be_finalized_ends_before_gradients_are_used(outcomes: Dict[str, Ranks], name: str) -> None:
    assert all("DDP still waits for gradients" in end for end in ends(outcomes[name])), outcomes[name]
    assert [record["moved"] for _, record in outcomes[name] if record] == [False, False]


@pytest.mark.skipif(not reducer.AT_ANY_TIME, reason="before torch 2.1 parameters have no hook after their gradient")
@pytest.mark.parametrize("name", ["plain-optimizer_within", "optimizer_within"])
def test_an_optimizer_within_the_backward_is_left_to_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    """It has used gradients that nobody has averaged: torch ends the job at the next forward."""
    assert any(FAILURE in end for end in ends(outcomes[name])), outcomes[name]


def test_a_setting_of_late_goes_before_an_explicit_false(outcomes: Dict[str, Ranks]) -> None:
    assert ends(outcomes["forced"]) == ["", ""]


# No hooks pile up on parameters, and static graphs are left alone.
@pytest.mark.parametrize(("name", "what", "noted"), [("parameter_returned", "hooks", 0), ("static", "armed", False)])
def test_parameters_gather_no_hooks_and_a_static_graph_is_left_alone(
    outcomes: Dict[str, Ranks], name: str, what: str, noted: Any
) -> None:
    assert steps(outcomes[name], what) == [noted, noted]
