"""Whether one rank is past the loop that another one is in: from two stacks of one program."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Dict, List, Optional, Tuple

import pytest

from ddpfix.monitor import places
from ddpfix.rules import differences
from ddpfix.rules.facts import Standing

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
    assert (
        differences.shared_loop(seen[one], seen[other]) is both
        and differences.shared_loop(seen[other], seen[one]) is both
    )


def test_no_source_is_no_answer() -> None:
    scope: Dict[str, Tuple[Standing, ...]] = {}
    code = "import sys\nfor _ in range(1):\n    found = of([sys._getframe()])\n"
    exec(compile(code, "<nowhere>", "exec"), {"of": places.loops_of}, scope)
    assert [loops for _, _, _, loops in scope["found"]] == [()]


def test_a_file_that_was_edited_since_is_no_answer(tmp_path: Path) -> None:
    """Its lines are others now."""
    file = tmp_path / "edited.py"
    code = "for _ in range(1):\n    found = look()\n"
    file.write_text(code + "# the same code\n")
    scope: Dict[str, Any] = {"look": lambda: places.loops_of(_stack(file))}
    exec(compile(code, str(file), "exec"), scope)
    assert [around for _, _, _, around in scope["found"]] == [((1, 2),)]
    file.write_text("import os\nwhile os:\n    for _ in range(1):\n        found = look()\n        break\n")
    linecache.checkcache(str(file))
    exec(compile(code, str(file), "exec"), scope)
    assert [around for _, _, _, around in scope["found"]] == [()]
