"""A model that was never averaged, and averages of different steps, are reported; what a program averages is not.

The first kind is accelerate's ``accumulate`` within another one, the second cached losses, or an early stop of PPO.
"""

from __future__ import annotations

import re
from typing import Dict, List

import pytest
from ddpfix.patches.torch.internals import reducer

from tests.late import launch
from tests.late.launch import Ranks, Scenario, ends, said

pytestmark = pytest.mark.patches("torch.divergence")
EVERY = {"divergence": "4"}
# The cause that is named of each.
NO_SYNC = r"Its forward ran under no_sync \(unaveraged\.py:\d+\)\. Leave no_sync for the last backward"
NEVER = {
    "within": NO_SYNC,
    "outside": NO_SYNC,
    "flagged": NO_SYNC,
    "accumulated_within": NO_SYNC,
    "flag_set_after": r"require_backward_grad_sync=False \(flag_set_after\.py:15\): set it before the forward",
    "first_only": NO_SYNC,
    "backward_inside": r"It ran inside the forward \(unaveraged\.py:\d+\), .* call backward after the forward",
}
# What is said of ranks whose averages do not belong together.
APART = {
    "twice": "By optimizer step 1 this rank has averaged 2 times, rank 0 once",
}
RIGHT = (
    "gradients_by_hand",
    "parameters_by_hand",
    "parameters_now_and_then",
    "first_rank_rules",
    "noise",
    "same_data",
    "no_sync_around_backward",
    "flag_set_before",
    "warm_up",
    "as_often",
    "another_forward",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    plans = [
        Scenario(name, function=f"unaveraged:{name}", settings=EVERY) for name in (*NEVER, *APART, *RIGHT, "mixed")
    ]
    plans += [Scenario(f"plain-{name}", function=f"unaveraged:{name}") for name in (*NEVER, *RIGHT)]
    plans.append(Scenario("off", function="unaveraged:within", settings={**EVERY, "divergence": "off"}))
    plans.append(Scenario("three", function="unaveraged:within", settings=EVERY, size=3))
    return launch.train(plans, tmp_path_factory.mktemp("unaveraged"))


def lines(ranks: Ranks) -> List[List[str]]:
    """What each rank has said of it."""
    return said(ranks, "never averaged the last backward", "diverged from rank", "averages mix different steps")


def unlike(ranks: Ranks) -> bool:
    """Whether ranks have trained different models."""
    steps = [record["steps"] for _, record in ranks if record is not None]
    return bool(steps[0] != steps[1])


# torch 2.0 ends a backward inside the forward of a static graph by itself.
@pytest.mark.parametrize("name", [name for name in NEVER if reducer.AT_ANY_TIME or name != "backward_inside"])
def test_a_model_that_was_never_averaged_is_named_once(outcomes: Dict[str, Ranks], name: str) -> None:
    assert ends(outcomes[name]) == ends(outcomes[f"plain-{name}"]) == ["", ""], outcomes[name]
    found = [line for rank in lines(outcomes[name]) for line in rank]
    assert len(found) == 1 and re.search(r"on rank 1: this \w+ differs from rank 0's: in 4 optimizer steps", found[0])
    assert re.search(NEVER[name], found[0]) and len(found[0]) <= 240, found
    # It was so, and ddpfix has changed nothing of it.
    assert unlike(outcomes[name])
    assert [record["steps"] for _, record in outcomes[name] if record] == [
        record["steps"] for _, record in outcomes[f"plain-{name}"] if record
    ]


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_where_the_program_averages(outcomes: Dict[str, Ranks], name: str) -> None:
    assert ends(outcomes[name]) == ends(outcomes[f"plain-{name}"]) == ["", ""], outcomes[name]
    assert lines(outcomes[name]) == [[], []]


@pytest.mark.parametrize("name", APART)
def test_averages_of_different_steps_are_counted(outcomes: Dict[str, Ranks], name: str) -> None:
    for found in lines(outcomes[name]):
        assert len(found) == 1 and "rank 1 diverged from rank 0 in Sequential" in found[0], outcomes[name]
        assert APART[name] in found[0] and "loss * 0" in found[0], found
    assert unlike(outcomes[name])


def test_gradients_of_no_sync_are_the_first_cause_that_is_offered(outcomes: Dict[str, Ranks]) -> None:
    for found in lines(outcomes["mixed"]):
        told = "2 optimizer steps before that used only gradients of forwards under no_sync"
        assert len(found) == 1 and told in found[0]
        assert "(unaveraged.py:" in found[0], found


def test_switched_off_nothing_is_said(outcomes: Dict[str, Ranks]) -> None:
    assert ends(outcomes["off"]) == ["", ""] and lines(outcomes["off"]) == [[], []]


def test_of_several_ranks_the_lowest_says_it(outcomes: Dict[str, Ranks]) -> None:
    first, second, third = lines(outcomes["three"])
    assert (first, third) == ([], []) and len(second) == 1 and second[0].startswith("ddpfix: on rank 1: "), second
