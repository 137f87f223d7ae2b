"""Ranks that train on the same samples, and epochs of the same order, are named once; right programs are not."""

from __future__ import annotations

from typing import Dict, List

import pytest

from tests.late import launch
from tests.late.launch import Scenario
from tests.late.test_exact import Ranks
from tests.late.test_scenarios import ends

pytestmark = pytest.mark.patches("torch.samples")
SAME = (
    "no_sampler",
    "shuffled_alike",
    "long",
    "with_workers",
    "stream",
    "endless",
    "without_batches",
    "wrong_rank",
    "accumulated",
    "features",
)
SAME_LINE = "all 2 ranks train on the same samples of a "
ORDERED = ("no_set_epoch", "no_set_epoch_long")
ORDER_LINE = "a DistributedSampler with shuffle=True gave two epochs in a row the same order, because its epoch was 0"
RIGHT = (
    "right",
    "right_with_workers",
    "in_order",
    "one_epoch",
    "own_data",
    "own_data_shuffled",
    "own_stream",
    "shuffled_apart",
    "evaluated",
    "evaluated_in_steps",
    "sliced",
    "sliced_in_length",
    "in_groups",
    "one_batch",
    "made_up",
    "learning_rate_first",
    "statistics_first",
    "unknown",
    "reads_ahead",
    "accelerated",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    names = (*SAME, *ORDERED, *RIGHT)
    plans = [Scenario(name, function=f"reading:{name}", settings={}) for name in names]
    plans += [Scenario(f"plain-{name}", function=f"reading:{name}") for name in names]
    plans += [
        Scenario("off", function="reading:no_sampler", settings={"torch_samples": "0"}),
        Scenario("three", function="reading:no_sampler", settings={}, size=3),
        Scenario("in_parallel", function="reading:in_parallel", settings={}, size=3),
    ]
    return launch.train(plans, tmp_path_factory.mktemp("samples"))


def lines(ranks: Ranks) -> List[List[str]]:
    """What each rank said of its samples."""
    return [[line for line in log.splitlines() if "DDPFIX_TORCH_SAMPLES" in line] for log, _ in ranks]


def as_in_plain_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    """What was read, every parameter after every step, and the random state at the end are the same, bit for bit."""
    assert ends(outcomes[name]) == ["", ""]
    plain, ours = ([record for _, record in outcomes[each] if record] for each in (f"plain-{name}", name))
    assert len(plain) == len(ours) == 2
    for one, other in zip(plain, ours):
        assert one["steps"] and {key: one.get(key) for key in ("steps", "read", "random", "mean")} == {
            key: other.get(key) for key in ("steps", "read", "random", "mean")
        }
    # The line is of ddpfix: plain torch says nothing of it.
    assert not any("same samples" in log or "same order" in log for log, _ in outcomes[f"plain-{name}"])


@pytest.mark.parametrize("name", SAME)
def test_the_same_samples_are_named_once(outcomes: Dict[str, Ranks], name: str) -> None:
    first, second = lines(outcomes[name])
    assert len(first) == 1 and not second, outcomes[name]
    assert SAME_LINE in first[0]
    assert ("Its DistributedSampler is to have" if name == "wrong_rank" else "DistributedSampler(dataset)") in first[0]
    as_in_plain_torch(outcomes, name)
    # It was so: both ranks read the same.
    read = [record.get("read") for _, record in outcomes[name] if record]
    assert read[0] == read[1]


@pytest.mark.parametrize("name", ORDERED)
def test_an_order_that_repeats_is_named_once(outcomes: Dict[str, Ranks], name: str) -> None:
    first, second = lines(outcomes[name])
    assert len(first) == 1 and not second, outcomes[name]
    assert ORDER_LINE in first[0]
    as_in_plain_torch(outcomes, name)
    read = [record["read"] for _, record in outcomes[name] if record]
    epochs = 3 if name == "no_set_epoch" else 2
    assert all(each == each[: len(each) // epochs] * epochs for each in read)


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_programs_that_are_right(outcomes: Dict[str, Ranks], name: str) -> None:
    assert lines(outcomes[name]) == [[], []]
    as_in_plain_torch(outcomes, name)


def test_switched_off_nothing_is_said(outcomes: Dict[str, Ranks]) -> None:
    assert ends(outcomes["off"]) == ["", ""] and lines(outcomes["off"]) == [[], []]


def test_three_ranks_are_all_of_them(outcomes: Dict[str, Ranks]) -> None:
    assert [len(each) for each in lines(outcomes["three"])] == [1, 0, 0]
    assert "all 3 ranks train on the same samples" in lines(outcomes["three"])[0][0]


def test_ranks_that_form_groups_may_share_samples(outcomes: Dict[str, Ranks]) -> None:
    assert ends(outcomes["in_parallel"]) == ["", "", ""] and lines(outcomes["in_parallel"]) == [[], [], []]
