"""Calls of collectives by line: who has called one more, and what is asked of a program's own groups."""

from __future__ import annotations

import inspect
import os
from types import FunctionType
from typing import Any

import torch
from torch import distributed

from ddpfix.ranks.groups.called import BEGINS, KINDS, CallCounts
from ddpfix.rules.facts import Called


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


def test_a_line_of_a_toolkit_has_the_users_own_beside_it() -> None:
    file = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "toolkit", "trainer.py")
    toolkit: Any = {}
    exec(compile("def save_checkpoint(save, *more):\n    save(*more)", file, "exec"), toolkit)
    counts = CallCounts()
    begins = counts.counting(lambda group: False)
    counts.begin(2, Group)
    toolkit["save_checkpoint"](barrier, begins, Group())
    here = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert counts.read().last == f"save_checkpoint (trainer.py:2), called at test_called.py:{here}"


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
