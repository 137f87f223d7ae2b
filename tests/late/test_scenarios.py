"""What a job may do besides training step by step."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
import torch

from tests.late import launch
from tests.late.launch import Scenario
from tests.late.test_exact import FAILURE, Ranks

pytestmark = pytest.mark.patches("torch.finalize")
CAN_ASK = hasattr(torch.distributed.Reducer, "_check_reducer_finalized")
FAILS_IN_PLAIN_TORCH = (
    "two_backwards_of_two",
    "plain_torch",
    "uneven",
    "second_backward",
    "broken_backward",
    "by_hand",
    "closure",
    "hidden_loss_left_out",
    "parameter_returned",
)
RIGHT_IN_PLAIN_TORCH = ("hidden_loss", "losses_reduced")
OURS = (
    *FAILS_IN_PLAIN_TORCH,
    "explicit_false",
    "static",
    "undone",
    "loss_reduced",
    "other_model_dropped",
    *RIGHT_IN_PLAIN_TORCH,
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    plans = [Scenario(f"plain-{name}", function=name, timeout=8) for name in FAILS_IN_PLAIN_TORCH]
    plans += [Scenario("plain-loss_reduced", function="loss_reduced", timeout=8)]
    plans += [Scenario(f"plain-{name}", function=name) for name in RIGHT_IN_PLAIN_TORCH]
    plans += [Scenario(name, function=name, settings={}) for name in OURS]
    plans += [Scenario("plain-optimizer_within", function="optimizer_within", timeout=8)]
    plans += [Scenario("optimizer_within", function="optimizer_within", settings={}, timeout=8)]
    settings = {"unused": "late"}
    plans += [Scenario("forced", function="explicit_false", settings=settings)]
    plans += [Scenario(f"{name}_at_once", function=name, settings=settings) for name in ("loss_reduced", "hidden_loss")]
    plans += [
        Scenario(f"cannot_finalize_{word}", function="cannot_finalize", settings={"unused": word})
        for word in ("auto", "late")
    ]
    return launch.train(plans, tmp_path_factory.mktemp("scenarios"))


def ends(ranks: Ranks) -> List[str]:
    return ["killed" if record is None else record["error"] or "" for _, record in ranks]


def of(ranks: Ranks, name: str) -> List[Any]:
    assert not any(ends(ranks)), ranks
    return [record[name] for _, record in ranks if record is not None]


@pytest.mark.parametrize("name", FAILS_IN_PLAIN_TORCH)
def test_plain_torch_fails(outcomes: Dict[str, Ranks], name: str) -> None:
    errors = ends(outcomes[f"plain-{name}"])
    words = (FAILURE, "Expected to mark a variable ready only once") if name == "second_backward" else (FAILURE,)
    assert any(word in end for word in words for end in errors), outcomes[f"plain-{name}"]


def test_separate_losses(outcomes: Dict[str, Ranks]) -> None:
    assert of(outcomes["two_backwards_of_two"], "ended") == [True, True]


def test_forwards_that_lead_to_no_reduction(outcomes: Dict[str, Ranks]) -> None:
    one, other = of(outcomes["plain_torch"], "sum")
    assert one == other


def test_a_closure_within_the_optimizers_step(outcomes: Dict[str, Ranks]) -> None:
    one, other = of(outcomes["closure"], "weights")
    assert one == other


@pytest.mark.parametrize("name", RIGHT_IN_PLAIN_TORCH)
def test_several_backwards_are_reduced_as_in_plain_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    values = of(outcomes[name], "weights") + of(outcomes[f"plain-{name}"], "weights")
    assert all(weights == values[0] for weights in values)


def test_the_end_of_another_model_leaves_a_pending_reduction(outcomes: Dict[str, Ranks]) -> None:
    one, other = of(outcomes["other_model_dropped"], "weights")
    assert one == other


def test_a_collective_between_backward_and_step(outcomes: Dict[str, Ranks]) -> None:
    # One rank waits in DDP's collective, the other in that of the loss.
    assert all(ends(outcomes["plain-loss_reduced"]))
    values = of(outcomes["loss_reduced"], "weights") + of(outcomes["loss_reduced_at_once"], "weights")
    assert all(weights == values[0] for weights in values)


@pytest.mark.parametrize("name", ["hidden_loss_at_once", "hidden_loss_left_out", "by_hand", "second_backward"])
def test_a_gradient_that_comes_after_the_reduction_is_averaged(outcomes: Dict[str, Ranks], name: str) -> None:
    one, other = of(outcomes[name], "weights")
    assert one == other


@pytest.mark.skipif(not CAN_ASK, reason="before torch 2.1 the reducer has no check")
@pytest.mark.parametrize("name", ["cannot_finalize_auto", "cannot_finalize_late"])
def test_what_cannot_be_finalized_ends_before_gradients_are_used(outcomes: Dict[str, Ranks], name: str) -> None:
    assert all("DDP still waits for gradients" in end for end in ends(outcomes[name])), outcomes[name]
    assert [record["moved"] for _, record in outcomes[name] if record] == [False, False]


def test_no_hooks_pile_up_on_parameters(outcomes: Dict[str, Ranks]) -> None:
    assert of(outcomes["parameter_returned"], "hooks") == [0, 0]


def test_join(outcomes: Dict[str, Ranks]) -> None:
    one, other = of(outcomes["uneven"], "weights")
    assert one == other


@pytest.mark.parametrize("name", ["explicit_false", "broken_backward", "undone"])
def test_what_is_not_ours_to_finalize_fails_as_in_plain_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    assert any(FAILURE in end for end in ends(outcomes[name])), outcomes[name]


@pytest.mark.skipif(not CAN_ASK, reason="before torch 2.1 parameters have no hook after their gradient")
@pytest.mark.parametrize("name", ["plain-optimizer_within", "optimizer_within"])
def test_an_optimizer_within_the_backward_is_left_to_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    """It has used gradients that nobody has averaged: torch ends the job at the next forward."""
    assert any(FAILURE in end for end in ends(outcomes[name])), outcomes[name]


def test_a_setting_of_late_goes_before_an_explicit_false(outcomes: Dict[str, Ranks]) -> None:
    assert ends(outcomes["forced"]) == ["", ""]


def test_static_graphs_are_left_alone(outcomes: Dict[str, Ranks]) -> None:
    assert of(outcomes["static"], "armed") == [False, False]


def test_a_second_backward_adds_its_mean(outcomes: Dict[str, Ranks]) -> None:
    assert of(outcomes["second_backward"], "twice") == [True, True]
