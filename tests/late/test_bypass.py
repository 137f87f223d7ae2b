"""A module that is called past its wrapper: no gradient is averaged; routed, it trains as with the wrapper."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from tests.late import past_calls
from tests.late.launch import Ranks, Scenario, said, steps
from tests.late.past_calls import ROUTED, STAYING

pytestmark = pytest.mark.sampled(inside=False, cells=True)
ROUTE = {"bypass": "route"}
PAST = "past its DistributedDataParallel wrapper"


def plans(folder: Path) -> List[Scenario]:
    def scenario(name: str, loop: str, settings: Optional[Dict[str, str]], **others: Any) -> Scenario:
        return Scenario(name, "past_calls:run", {"name": loop, "mended": name.startswith("edited")}, settings, **others)

    modes = {"plain": None, "edited": None, "route": ROUTE}
    plans = [scenario(f"{mode}-{loop}", loop, modes[mode]) for mode in modes for loop in (*ROUTED, *STAYING)]
    return [
        *plans,
        scenario("auto", "simple", {}),
        scenario("off", "simple", {"bypass": "off"}),
        scenario("switched", "simple", {**ROUTE, "torch_bypass": "0"}),
        scenario("three", "simple", ROUTE, size=3),
    ]


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
