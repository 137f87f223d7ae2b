"""DDPFIX_DRIFT=average: what DDP does not know is averaged as if the model had been wrapped again."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from tests.late import launch
from tests.late.launch import Scenario
from tests.late.rewrapped import CHANGES
from tests.late.test_exact import Ranks
from tests.late.test_scenarios import ends

pytestmark = [pytest.mark.patches("torch.drift"), pytest.mark.sampled(inside=False, cells=True)]
AVERAGE = {"drift": "average", "drift_steps": "2"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    def scenario(name: str, function: str, **others: Any) -> Scenario:
        return Scenario(name, function=f"rewrapped:{function}", **others)

    plans = [scenario(f"plain-{name}", name) for name in (*CHANGES, "one_rank")]
    plans += [scenario(f"again-{name}", f"{name}_again") for name in CHANGES]
    plans += [scenario(f"average-{name}", name, settings=AVERAGE) for name in (*CHANGES, "one_rank")]
    plans += [scenario("warn", "set_free", settings={"drift_steps": "2"})]
    plans += [
        scenario("three", "set_free", settings=AVERAGE, size=3),
        scenario("again-three", "set_free_again", size=3),
    ]
    return launch.train(plans, tmp_path_factory.mktemp("averaging"))


def records(ranks: Ranks) -> List[Any]:
    assert ends(ranks) == [""] * len(ranks), ranks
    return [record for _, record in ranks if record is not None]


def said(ranks: Ranks, words: str) -> List[List[str]]:
    return [[line for line in log.splitlines() if words in line] for log, _ in ranks]


@pytest.mark.parametrize("name", CHANGES)
def test_replicas_part_in_plain_torch_or_it_ends_with_an_error(outcomes: Dict[str, Ranks], name: str) -> None:
    found = outcomes[f"plain-{name}"]
    steps = [record["steps"] for _, record in found if record is not None]
    assert any(ends(found)) if name == "replaced" else steps[0] != steps[1]


@pytest.mark.parametrize("name", CHANGES)
def test_it_trains_as_if_it_was_wrapped_again(outcomes: Dict[str, Ranks], name: str) -> None:
    first, second = records(outcomes[f"average-{name}"])
    assert first == second and [first, second] == records(outcomes[f"again-{name}"])
    assert [len(lines) for lines in said(outcomes[f"average-{name}"], "gradients are averaged")] == [1, 0]
    assert said(outcomes[f"average-{name}"], "differs from rank") == [[], []]


def test_by_default_it_is_named_and_not_averaged(outcomes: Dict[str, Ranks]) -> None:
    assert records(outcomes["warn"]) == records(outcomes["plain-set_free"])
    assert [len(lines) for lines in said(outcomes["warn"], "ranks drift apart")] == [1, 0]


def test_what_one_rank_alone_trains_is_not_averaged(outcomes: Dict[str, Ranks]) -> None:
    assert records(outcomes["average-one_rank"]) == records(outcomes["plain-one_rank"])
    first, (line,) = said(outcomes["average-one_rank"], "not on all ranks in one step")
    assert not first and "ddpfix: 2: set free, added or replaced" in line


def test_three_ranks(outcomes: Dict[str, Ranks]) -> None:
    first, *others = records(outcomes["three"])
    assert others == [first, first]
    # The sum of three numbers depends on their order, which gloo chooses by the size of a bucket.
    again = records(outcomes["again-three"])[0]["steps"]
    for ours, theirs in zip(first["steps"], again):
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)
