"""Ranks that give their model the same inputs are named once; right programs are not."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest
import torch
from ddpfix.patches.torch.data import batch_digest

from tests.late import launch
from tests.late.launch import Scenario
from tests.late.test_exact import Ranks
from tests.late.test_scenarios import ends

pytestmark = [pytest.mark.patches("torch.samples"), pytest.mark.sampled(inside=False, cells=True)]
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
    "mode_of_the_module",
    "unknown",
)
SAME_LINE = (
    "all 2 ranks gave their Sequential the same inputs and got the same outputs in the first 32 training forwards."
)
RIGHT = (
    "right",
    "right_with_workers",
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
    "counts_steps",
    "noisy",
    "noisy_within",
    "labels",
    "one_order",
    "accelerated",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    names = (*SAME, *RIGHT)
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
    for each in (name, f"plain-{name}"):
        assert ends(outcomes[each]) == ["", ""], outcomes[each]
    plain, ours = ([record for _, record in outcomes[each] if record] for each in (f"plain-{name}", name))
    assert len(plain) == len(ours) == 2
    for one, other in zip(plain, ours):
        assert one["steps"] and {key: one.get(key) for key in ("steps", "read", "random", "mean")} == {
            key: other.get(key) for key in ("steps", "read", "random", "mean")
        }
    # The line is of ddpfix: plain torch says nothing of it.
    assert not any("the same inputs" in log for log, _ in outcomes[f"plain-{name}"])


@pytest.mark.parametrize("name", SAME)
def test_the_same_samples_are_named_once(outcomes: Dict[str, Ranks], name: str) -> None:
    first, second = lines(outcomes[name])
    assert len(first) == 1 and not second, outcomes[name]
    assert SAME_LINE in first[0]
    as_in_plain_torch(outcomes, name)
    # It was so: both ranks read the same.
    read = [record.get("read") for _, record in outcomes[name] if record]
    assert read[0] == read[1]


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_programs_that_are_right(outcomes: Dict[str, Ranks], name: str) -> None:
    assert lines(outcomes[name]) == [[], []]
    as_in_plain_torch(outcomes, name)


def test_switched_off_nothing_is_said(outcomes: Dict[str, Ranks]) -> None:
    assert ends(outcomes["off"]) == ["", ""] and lines(outcomes["off"]) == [[], []]


def test_three_ranks_are_all_of_them(outcomes: Dict[str, Ranks]) -> None:
    assert [len(each) for each in lines(outcomes["three"])] == [1, 0, 0]
    assert "all 3 ranks gave their Sequential the same inputs" in lines(outcomes["three"])[0][0]


def test_ranks_that_form_groups_may_share_samples(outcomes: Dict[str, Ranks]) -> None:
    assert ends(outcomes["in_parallel"]) == ["", "", ""] and lines(outcomes["in_parallel"]) == [[], [], []]


# In one process.


class Lazy(Dict[str, Any]):
    """A mapping that must not be asked for its values: each answer draws a random number."""

    def items(self) -> Any:
        raise AssertionError

    def __getitem__(self, key: str) -> Any:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError


class Name(str):
    def __repr__(self) -> str:
        raise AssertionError

    __eq__ = __hash__ = __str__ = __len__ = __repr__  # type: ignore[assignment]


class Held:
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(4000).reshape(40, 100),
        lambda: torch.arange(4000.0).reshape(40, 100).t(),
        lambda: torch.arange(64).to(torch.complex64)[None],
        lambda: torch.ones(3, dtype=torch.bfloat16),
        lambda: torch.tensor(3.0),
        lambda: [{"a": (1, "b", None, 2.5)}, torch.ones(2)],
        lambda: Lazy(a=torch.ones(2)),
    ],
)
def test_equal_inputs_have_equal_digests(make: Callable[[], Any]) -> None:
    assert batch_digest.digest(make()) == batch_digest.digest(make()) != ""
    assert batch_digest.digest(make()) != batch_digest.digest([make(), 0])


UNKNOWN = [
    object(),
    Name("a"),
    Held(),
    [torch.ones(2), Name("a")],
    torch.ones(2, device="meta"),
    torch.eye(2).to_sparse(),
    list(range(300)),
    torch.ones(2).numpy(),
]


@pytest.mark.parametrize("number", range(len(UNKNOWN)))
def test_what_cannot_be_looked_at_is_not_compared_and_its_code_does_not_run(number: int) -> None:
    with pytest.raises(batch_digest.UnknownError):
        batch_digest.digest(UNKNOWN[number])


@pytest.mark.parametrize("value", [torch.arange(4), 3, [torch.arange(4), "a"], []])
def test_labels_alone_say_nothing(value: Any) -> None:
    assert batch_digest.digest(value) == ""


def test_one_element_tells_inputs_apart() -> None:
    one = torch.zeros(64, 28, 28)
    other = one.clone()
    other[40, 11, 3] = 1e-9
    assert batch_digest.digest(one) != batch_digest.digest(other)
