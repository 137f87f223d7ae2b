"""Ranks that train on the same samples, and epochs of the same order, are named once; right programs are not."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any, Callable, Dict, Iterator, List

import pytest
import torch
from ddpfix.patches.torch import contents, readings
from torch.utils.data import DataLoader

import ddpfix
from ddpfix import engine
from tests.late import launch, reading
from tests.late.launch import Scenario
from tests.late.test_exact import Ranks
from tests.late.test_scenarios import ends
from tests.support import undo

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
    for each in (name, f"plain-{name}"):
        assert ends(outcomes[each]) == ["", ""], outcomes[each]
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


# In one process.


@pytest.fixture
def noted() -> Iterator[readings.Readings]:
    """Loaders of this process are looked at, as on a rank of several."""
    ddpfix.activate(log="off")
    undo.open_gate()
    current = engine.current()
    assert current is not None
    passes = current.kept.of(readings.Readings)
    passes.need()
    yield passes
    assert ddpfix.deactivate() == []


def test_a_loader_and_its_iterator_stay_what_they_are(noted: readings.Readings) -> None:
    loader: Any = DataLoader(reading.Samples(8), 4, shuffle=True)
    before = dict(vars(loader))
    batches = iter(loader)
    assert type(batches).__name__ == "_SingleProcessDataLoaderIter"
    attributes = set(vars(batches))
    assert len(list(batches)) == 2
    assert vars(loader) == before and set(vars(batches)) == attributes
    for again in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert len(list(again)) == 2
    with pytest.raises(NotImplementedError):
        pickle.dumps(batches)


def test_a_pass_is_noted_while_it_is_read(noted: readings.Readings) -> None:
    loader: Any = DataLoader(reading.Samples(200), 4)
    batches = iter(loader)
    assert noted.latest() is None
    next(batches)
    found = noted.latest()
    assert found is not None and found.given == len(found.indices) == len(found.seen) == 1
    for _ in batches:
        pass
    assert found.ended and found.given == 50 and len(found.indices) == readings.MOST and len(found.seen) == 7
    # Later passes are not looked into.
    for seen in (7, 0, 0):
        list(loader)
        again = noted.latest()
        assert again is not None and len(again.seen) == seen and len(again.indices) == (readings.MOST if seen else 0)
    # Nothing is kept alive.
    kept = weakref.ref(loader)
    del loader, batches, again
    gc.collect()
    assert kept() is None and found.iterator() is None


class Slots:
    __slots__ = ()


class Lazy(Dict[str, Any]):
    """A mapping that must not be asked for its values: each answer draws a random number."""

    def items(self) -> Any:
        raise AssertionError

    def __getitem__(self, key: str) -> Any:
        raise AssertionError


class Held:
    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def drawn(self) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(4000).reshape(40, 100),
        lambda: torch.arange(4000.0).reshape(40, 100).t(),
        lambda: torch.arange(64).to(torch.complex64),
        lambda: torch.ones(3, dtype=torch.bfloat16),
        lambda: torch.tensor(3),
        lambda: [{"a": (1, "b", None, 2.5)}, torch.ones(2)],
        lambda: Lazy(a=torch.ones(2)),
        lambda: Held({"a": torch.ones(2)}),
        lambda: torch.ones(3).numpy(),
    ],
)
def test_equal_batches_have_equal_digests(make: Callable[[], Any]) -> None:
    assert contents.digest(make()) == contents.digest(make())
    assert contents.digest(make()) != contents.digest([make(), 0])


UNKNOWN = [
    Slots(),
    torch.ones(2, device="meta"),
    torch.eye(2).to_sparse(),
    list(range(300)),
    torch.ones(2, 2).numpy().astype(object),
]


@pytest.mark.parametrize("value", UNKNOWN)
def test_what_cannot_be_looked_at_is_not_compared(value: Any) -> None:
    with pytest.raises(contents.UnknownError):
        contents.digest(value)


def test_pictures_with_empty_borders_are_told_apart() -> None:
    one, other = torch.zeros(64, 28, 28), torch.zeros(64, 28, 28)
    one[:, 8:20, 8:20] = torch.rand(64, 12, 12)
    other[:, 8:20, 8:20] = torch.rand(64, 12, 12)
    assert contents.digest(one) != contents.digest(other)


@pytest.mark.parametrize("batch", [[1, 2], 3, "a", ["a", "b"], [True], []])
def test_indices_are_numbers_or_names(batch: Any) -> None:
    assert contents.indices(batch) == contents.indices(copy.copy(batch))
    assert contents.indices(batch) != contents.indices([7, 8])


@pytest.mark.parametrize("batch", [[torch.tensor(1)], [(1, 2)], None, [None], Slots()])
def test_other_indices_are_not_compared(batch: Any) -> None:
    assert contents.indices(batch) is None


def test_a_part_of_a_batch_is_no_batch() -> None:
    given = {(8, 100), (8,)}
    assert readings._is_whole((8, 100), given) and readings._is_whole((8, 50, 80), given)
    assert not readings._is_whole((4, 100), given) and not readings._is_whole((8, 50), given)
    assert not readings._is_whole((4, 50, 80), given) and not readings._is_whole((8, 3, 32, 32), {(8, 3, 64, 64)})
