"""Ranks with different numbers of batches: a loop waits for ever in plain torch, and ends on all ranks where asked."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from tests.late import launch
from tests.late.launch import Scenario
from tests.late.test_exact import Ranks
from tests.late.test_scenarios import ends
from tests.late.uneven_loops import LENGTHS

pytestmark = [pytest.mark.patches("torch.uneven"), pytest.mark.sampled(inside=False, cells=True)]
POLICIES = ("stop", "pad")


def scenario(name: str, loop: str, file: str = "uneven_loops", **others: Any) -> Scenario:
    return Scenario(name, function=f"{file}:{loop}", timeout=60, **others)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    plans = [scenario("plain", "streamed")]
    plans += [scenario(how, "streamed", settings={"uneven": how}) for how in POLICIES]
    plans += [scenario(f"hand-{how}", f"streamed_{how}") for how in POLICIES]
    return launch.train(plans, tmp_path_factory.mktemp("uneven"))


def steps(ranks: Ranks) -> List[Any]:
    """The parameters of each rank after each of its steps."""
    assert ends(ranks) == [""] * len(ranks), ranks
    return [record["steps"] for _, record in ranks if record is not None]


def came_out_of_step(ranks: Ranks) -> bool:
    """Whether a rank waited for ever, or ranks trained different models."""
    trained = [record["steps"] for _, record in ranks if record is not None]
    return any(ends(ranks)) or trained[0] != trained[1]


def said(ranks: Ranks, words: str) -> List[str]:
    return [line for log, _ in ranks for line in log.splitlines() if words in line]


def test_ranks_come_out_of_step_in_plain_torch(outcomes: Dict[str, Ranks]) -> None:
    assert came_out_of_step(outcomes["plain"])


@pytest.mark.parametrize("how", POLICIES)
def test_an_epoch_ends_together_as_if_evened_by_hand(outcomes: Dict[str, Ranks], how: str) -> None:
    first, second = steps(outcomes[how])
    assert first == second
    assert [first, second] == steps(outcomes[f"hand-{how}"])
    each = {"stop": min, "pad": max}[how](LENGTHS[:2])
    assert len(first) == 2 * each
    assert said(outcomes[how], f"each rank trained {each} steps")
