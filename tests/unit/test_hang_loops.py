"""Whether one rank is past the loop that another one is in: from two stacks of one program."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Dict, List, Optional, Tuple

import pytest
import torch
from torch import distributed

from ddpfix.groups.calls import BEGINS, KINDS, CallCounts
from ddpfix.monitor import places
from ddpfix.rules import differences
from ddpfix.rules.facts import Called, Standing

PROGRAM = """
def step():
    look("step")

def train(epochs):
    look("before")
    for epoch in range(epochs):
        for batch in range(2):
            step()
            look("inside")
        else:
            look("else")
        look("after")
    look("end")

train(1)
look("module")
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Tuple[Standing, ...]]:
    """What is known of the stack at each look of the program."""
    file = tmp_path_factory.mktemp("turns") / "program.py"
    file.write_text(PROGRAM)
    found: Dict[str, Tuple[Standing, ...]] = {}
    scope = {"__name__": "program", "look": lambda name: found.setdefault(name, places.loops_of(_stack(file)))}
    exec(compile(PROGRAM, str(file), "exec"), scope)
    return found


def _stack(file: Path) -> List[FrameType]:
    frames: List[FrameType] = []
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        frames += [frame] if frame.f_code.co_filename == str(file) else []
        frame = frame.f_back
    return frames[::-1]


@pytest.mark.parametrize(
    ("one", "other", "loop"),
    [
        ("after", "step", (8, True)),
        ("else", "inside", (8, True)),
        ("end", "inside", (7, False)),
        ("module", "inside", None),
        ("inside", "step", None),
        ("before", "step", None),
        ("step", "after", None),
        ("after", "after", None),
        ("after", "end", None),
    ],
)
def test_the_loop_that_one_is_past_and_the_other_in(
    one: str, other: str, loop: Optional[Tuple[int, bool]], seen: Dict[str, Tuple[Standing, ...]]
) -> None:
    found = differences.left_loop(seen[one], seen[other])
    assert (found if found is None else found[1:]) == loop


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("inside", "step", True),
        ("after", "else", True),
        ("after", "step", False),
        ("end", "inside", False),
        ("before", "end", False),
        ("inside", "inside", False),
    ],
)
def test_two_ranks_in_the_body_of_one_loop(
    one: str, other: str, both: bool, seen: Dict[str, Tuple[Standing, ...]]
) -> None:
    ours, theirs = seen[one], seen[other]
    assert differences.shared_loop(ours, theirs) is differences.shared_loop(theirs, ours) is both


def test_no_source_is_no_answer() -> None:
    scope: Dict[str, Tuple[Standing, ...]] = {}
    code = "import sys\nfor _ in range(1):\n    found = of([sys._getframe()])\n"
    exec(compile(code, "<nowhere>", "exec"), {"of": places.loops_of}, scope)
    assert [loops for _, _, _, loops in scope["found"]] == [()]


def test_a_file_that_was_edited_since_is_no_answer(tmp_path: Path) -> None:
    """Its lines are others now."""
    file = tmp_path / "edited.py"
    code = "while True:\n    found = look()\n    break\n"
    file.write_text(code + "# the same code\n")
    scope: Dict[str, Any] = {"look": lambda: places.loops_of(_stack(file))}
    exec(compile(code, str(file), "exec"), scope)
    assert [around for _, _, _, around in scope["found"]] == [((1, 3),)]
    file.write_text("import os\nwhile os:\n    for _ in range(1):\n        found = look()\n        break\n")
    linecache.checkcache(str(file))
    exec(compile(code, str(file), "exec"), scope)
    assert [around for _, _, _, around in scope["found"]] == [()]


# Calls of collectives by line: who has called one more, and what is asked of a program's own groups.


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
    line = f"save (test_hang_loops.py:{save.__code__.co_firstlineno + 1})"
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
    assert counts.read().last == f"save_checkpoint (trainer.py:2), called at test_hang_loops.py:{here}"


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
