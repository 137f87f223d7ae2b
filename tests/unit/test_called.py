"""Calls of collectives by line: who has called one more, and what is asked of a program's own groups."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any, Dict, Optional, Tuple

import pytest
from torch import distributed

from ddpfix.ranks.groups.called import BEGINS, KINDS, CallCounts, Called, one_more

A, B, SAVE = "step (train.py:10)", "train.py:20", "save (train.py:30)"


@pytest.mark.parametrize(
    "here, at, there, other_at, found",
    [
        # A save of this rank alone; the other one is ahead at the line where it waits.
        ({SAVE: 1, A: 1}, A, {A: 1, B: 1}, B, (SAVE, 1)),
        # In a loop, both wait at the same line.
        ({SAVE: 1, A: 9}, A, {A: 10}, A, (SAVE, 1)),
        ({SAVE: 2, A: 8}, A, {A: 10}, A, (SAVE, 2)),
        # The other one has ended.
        ({SAVE: 1, A: 10}, A, {A: 10}, "", (SAVE, 1)),
        # This rank still waits where it alone has called: the paragraph has the line already.
        ({SAVE: 1}, SAVE, {A: 1}, A, None),
        # Branches that call at lines of their own, and wait elsewhere.
        ({SAVE: 1, A: 5}, A, {B: 1, A: 5}, A, None),
        # Nothing is different, or one is a step behind.
        ({A: 5}, A, {A: 5}, A, None),
        ({A: 4}, A, {A: 5}, A, None),
        # Two lines are different: none of them is certain.
        ({SAVE: 1, B: 1, A: 1}, A, {A: 3}, A, None),
    ],
)
def test_one_rank_has_called_more(
    here: Dict[str, int], at: str, there: Dict[str, int], other_at: str, found: Optional[Tuple[str, int]]
) -> None:
    assert one_more(here, at, there, other_at) == found
    if found is not None:
        assert one_more(there, other_at, here, at) is None


class Group:
    """Of two ranks; it counts what is asked of it."""

    asked = 0

    def size(self) -> int:
        self.asked += 1
        return 2


class Another(Group):
    """A program's own."""


def save(begins: Any, group: Any) -> Any:
    return barrier(begins, group)


def barrier(begins: Any, group: Any) -> Any:
    """As torch's function of this name begins."""
    return begins(group)


def test_collectives_are_counted_by_line_in_groups_of_all_ranks() -> None:
    counts = CallCounts()
    begins = counts.counting(lambda group: group is False)
    assert save(begins, None) is False and counts.read() == Called()
    counts.begin(2, Group)
    for group in (Group(), None, Group()):
        assert save(begins, group) is False
    line = f"save (test_called.py:{save.__code__.co_firstlineno + 1})"
    assert counts.read() == Called({line: 3}, line)
    # Another function of torch that asks for the same, a group of some ranks, and one of a class of the program's own.
    own = Another()
    assert begins(None) is False and save(begins, own) is False and own.asked == 0
    assert save(begins, False) is True and counts.read() == Called({line: 3}, line)
    counts.begin(4, Group)
    save(begins, Group())
    assert counts.read() == Called()


def test_torch_asks_it_in_each_collective() -> None:
    begins = vars(distributed.distributed_c10d)[BEGINS]
    assert isinstance(begins, FunctionType) and list(inspect.signature(begins).parameters) == ["group"]
    for kind in KINDS:
        function = inspect.unwrap(getattr(distributed, kind))
        assert BEGINS in function.__code__.co_names and function.__code__.co_name == kind


def test_a_class_of_the_programs_own_calls_torchs_methods() -> None:
    """torch takes what Python puts there for the methods of such a class: none is replaced."""
    assert {type(vars(distributed.ProcessGroup)[name]).__name__ for name in ("barrier", "allreduce")} == {
        "instancemethod"
    }
