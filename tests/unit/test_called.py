"""Calls of collectives by line: who has called one more, and what a method that counts leaves behind."""

from __future__ import annotations

import sys
from typing import Any, Dict, Optional, Tuple

import pytest
from torch import distributed

from ddpfix.ranks.groups.called import KINDS, CallCounts, Called, one_more

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
    """Of two ranks."""

    def size(self) -> int:
        return 2

    def barrier(self, *args: Any) -> Any:
        return args


def save(group: Group) -> Any:
    return group.barrier(1, 2)


def test_calls_are_counted_by_line_in_groups_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = CallCounts()
    counts.begin(2, Group)
    monkeypatch.setattr(Group, "barrier", counts.counting("barrier", Group.barrier))
    for _ in range(3):
        assert save(Group()) == (1, 2)
    line = f"save (test_called.py:{save.__code__.co_firstlineno + 1})"
    assert counts.read() == Called({line: 3}, line)
    counts.begin(4, Group)
    save(Group())
    assert counts.read() == Called()


def test_an_error_has_no_frame_of_ddpfix(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = CallCounts()
    counts.begin(2, Group)

    def fails(group: Group) -> None:
        raise RuntimeError("sizes differ")

    monkeypatch.setattr(Group, "barrier", counts.counting("barrier", fails))
    with pytest.raises(RuntimeError) as raised:
        Group().barrier()
    names = []
    trace = raised.value.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert not [name for name in names if name.endswith("called.py") and "test_" not in name], names


def test_torch_has_these_methods() -> None:
    assert [kind for kind in KINDS if kind not in vars(distributed.ProcessGroup)] == []
    assert sys.modules["torch.distributed"] is distributed
