"""A module that is called past its wrapper: no gradient is averaged; routed, it trains as with the wrapper."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from tests.late import launch, past_calls
from tests.late.launch import Ranks, Scenario, said, steps
from tests.late.past_calls import ROUTED, STAYING

pytestmark = pytest.mark.sampled(inside=False, cells=True)
ROUTE = {"bypass": "route"}
PAST = "past its DistributedDataParallel wrapper"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    def scenario(name: str, loop: str, **others: Any) -> Scenario:
        return Scenario(name, function=f"past_calls:{loop}", **others)

    loops = (*ROUTED, *STAYING)
    plans = [scenario(f"plain-{loop}", loop) for loop in loops]
    plans += [scenario(f"edited-{loop}", f"edited_{loop}") for loop in ROUTED]
    plans += [scenario(f"route-{loop}", loop, settings=ROUTE) for loop in loops]
    plans += [
        scenario("auto", "simple", settings={}),
        scenario("off", "simple", settings={"bypass": "off"}),
        scenario("switched", "simple", settings={**ROUTE, "torch_bypass": "0"}),
        scenario("three", "simple", settings=ROUTE, size=3),
    ]
    return launch.train(plans, tmp_path_factory.mktemp("past"))


@pytest.mark.patches("torch.bypass")
@pytest.mark.parametrize("loop", ROUTED)
def test_replicas_part_and_routed_train_what_the_wrapper_trains(outcomes: Dict[str, Ranks], loop: str) -> None:
    one, other = steps(outcomes[f"plain-{loop}"])
    assert one[0] != other[0]
    first, second = steps(outcomes[f"route-{loop}"])
    assert first == second == steps(outcomes[f"edited-{loop}"])[0]
    (line,), others = said(outcomes[f"route-{loop}"], PAST)
    assert f"{past_calls.__name__.rpartition('.')[2]}.py:" in line and " calls a Sequential " in line and others == []


@pytest.mark.patches("torch.bypass")
@pytest.mark.parametrize("loop", STAYING)
def test_what_is_right_stays_as_it_is(outcomes: Dict[str, Ranks], loop: str) -> None:
    assert steps(outcomes[f"route-{loop}"]) == steps(outcomes[f"plain-{loop}"])
    first, _ = said(outcomes[f"route-{loop}"], PAST)
    assert len(first) == (1 if loop == "alone" else 0)
    assert all("not on every rank" in line for line in first)


@pytest.mark.patches("torch.bypass")
def test_three_ranks(outcomes: Dict[str, Ranks]) -> None:
    first, second, third = steps(outcomes["three"])
    assert first == second == third


@pytest.mark.parametrize("name", ["auto", "off", "switched"])
def test_by_default_and_switched_off_a_program_trains_as_in_plain_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    assert steps(outcomes[name]) == steps(outcomes["plain-simple"])
    assert said(outcomes[name], PAST) == [[], []]
