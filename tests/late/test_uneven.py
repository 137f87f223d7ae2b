"""Ranks with different numbers of batches: a loop waits for ever in plain torch, and ends on all ranks where asked."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.late.launch import Ranks, Scenario, ends, said, steps
from tests.late.toolkit_loops import TOOLKITS
from tests.late.uneven_loops import LENGTHS, RIGHT, UNEVEN

pytestmark = [pytest.mark.patches("torch.uneven"), pytest.mark.sampled(inside=False, cells=True)]
POLICIES = ("stop", "pad")


def scenario(name: str, loop: str, file: str = "uneven_loops", **others: Any) -> Scenario:
    return Scenario(name, function=f"{file}:{loop}", timeout=60, **others)


def plans(folder: Path) -> List[Scenario]:
    files = dict.fromkeys((*UNEVEN, *RIGHT, "counts_steps", "once"), "uneven_loops")
    plans = []
    for loop, file in {**files, **dict.fromkeys(TOOLKITS, "toolkit_loops")}.items():
        plans.append(scenario(f"plain-{loop}", loop, file))
        plans += [scenario(f"{how}-{loop}", loop, file, settings={"uneven": how}) for how in POLICIES]
        by_hand = POLICIES if loop in (*UNEVEN, *TOOLKITS) else ()
        plans += [scenario(f"hand-{how}-{loop}", loop, file, given={"how": how}) for how in by_hand]
    return [
        *plans,
        scenario("auto-counts_steps", "counts_steps", settings={}),
        scenario("plain-auto", "streamed", settings={}),
        scenario("plain-switched", "streamed", settings={"uneven": "stop", "torch_uneven": "0"}),
        scenario("three", "streamed", settings={"uneven": "pad"}, size=3),
        scenario("hand-three", "streamed", given={"how": "pad"}, size=3),
    ]


def came_out_of_step(ranks: Ranks) -> bool:
    """Whether a rank waited for ever, or ranks trained different models."""
    trained = [record["steps"] for _, record in ranks if record is not None]
    return any(ends(ranks)) or trained[0] != trained[1]


def told(ranks: Ranks, words: str) -> List[str]:
    """The lines of all ranks with these words."""
    return sum(said(ranks, words), [])


@pytest.mark.parametrize("loop", ["shuffled", "auto", "switched"])
def test_ranks_come_out_of_step_where_nothing_is_done(outcomes: Dict[str, Ranks], loop: str) -> None:
    assert came_out_of_step(outcomes[f"plain-{loop}"])


@pytest.mark.parametrize("loop", UNEVEN)
@pytest.mark.parametrize("how", POLICIES)
def test_an_epoch_ends_together_as_if_evened_by_hand(outcomes: Dict[str, Ranks], loop: str, how: str) -> None:
    first, second = steps(outcomes[f"{how}-{loop}"])
    assert first == second
    assert [first, second] == steps(outcomes[f"hand-{how}-{loop}"])
    each = {"stop": min, "pad": max}[how](LENGTHS[:2])
    assert len(first) == 2 * (each // 2 if loop == "accumulated" else each)
    assert told(outcomes[f"{how}-{loop}"], "ranks have" if loop == "shuffled" else f"each rank trained {each} steps")


@pytest.mark.parametrize("loop", TOOLKITS)
@pytest.mark.parametrize("how", POLICIES)
def test_under_a_toolkit(outcomes: Dict[str, Ranks], loop: str, how: str) -> None:
    if not find_spec(TOOLKITS[loop]):
        pytest.skip(f"{TOOLKITS[loop]} is not installed here")
    assert came_out_of_step(outcomes[f"plain-{loop}"])
    first, second = steps(outcomes[f"{how}-{loop}"])
    assert first == second and [first, second] == steps(outcomes[f"hand-{how}-{loop}"])
    assert told(outcomes[f"{how}-{loop}"], f"each rank trained {4 if how == 'stop' else 6} steps")


@pytest.mark.parametrize("loop", RIGHT)
@pytest.mark.parametrize("how", POLICIES)
def test_a_loop_that_is_right_trains_the_same(outcomes: Dict[str, Ranks], loop: str, how: str) -> None:
    plain, ours = ([record for _, record in outcomes[f"{which}-{loop}"]] for which in ("plain", how))
    assert steps(outcomes[f"{how}-{loop}"]) == steps(outcomes[f"plain-{loop}"])
    assert [each.get("evaluated") for each in plain if each] == [each.get("evaluated") for each in ours if each]


def test_nothing_is_done_by_default(outcomes: Dict[str, Ranks]) -> None:
    assert steps(outcomes["auto-counts_steps"]) == steps(outcomes["plain-counts_steps"])


@pytest.mark.parametrize("how", POLICIES)
def test_it_is_said_where_ranks_do_not_come_together(outcomes: Dict[str, Ranks], how: str) -> None:
    (line,) = told(outcomes[f"{how}-shares_out"], "DDPFIX_UNEVEN is off from here on")
    assert "not all ranks asked for batch 2 of a Samples after the same training step" in line
    (line,) = told(outcomes[f"{how}-leaves_alone"], "DDPFIX_UNEVEN is off from here on")
    assert "another rank left its loop over a loader before step 5" in line
    for loop in ("breaks_off", "evaluates", "joined", "catches"):
        assert not told(outcomes[f"{how}-{loop}"], "DDPFIX_UNEVEN is off from here on")


def test_what_can_be_read_once_ends_with_the_shortest(outcomes: Dict[str, Ranks]) -> None:
    first, second = steps(outcomes["pad-once"])
    assert first == second and len(first) == min(LENGTHS[:2])
    assert told(outcomes["pad-once"], "the other ranks' loaders can be read only once")


def test_three_ranks(outcomes: Dict[str, Ranks]) -> None:
    first, *others = steps(outcomes["three"])
    assert others == [first, first] and [first, *others] == steps(outcomes["hand-three"])
