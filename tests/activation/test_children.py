"""Every Python child of a program is under ddpfix too, whatever starts it; and none is where ddpfix is off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, Set

import pytest

from tests.activation.support import ROOT, Finished, Place
from tests.activation.ways import Way, make, way

__all__ = ["way"]
PROGRAM = Path(__file__).with_name("children.py")


def answers(done: Finished[str]) -> Dict[str, int]:
    assert done.returncode == 0 and done.stderr == "", done.stderr
    seen: Dict[str, int] = json.loads(done.stdout)
    assert len(seen) == 11
    return seen


def values(done: Finished[str]) -> Set[int]:
    return set(answers(done).values())


def test_children_are_covered(way: Way) -> None:
    seen = answers(way.run([PROGRAM]))
    assert {kind for kind, number in seen.items() if number != 2} == set()


def test_children_of_a_module_and_of_a_program(request: pytest.FixtureRequest) -> None:
    assert values(make("checkout", request).run(["-m", "tests.activation.children"])) == {2}
    assert values(make("run", request).run(["sh", "-c", f"python {PROGRAM}; exit $?"])) == {2}


def test_children_of_a_program_with_the_import(installed: Place, unpatched: Place, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import ddpfix.auto\n" + PROGRAM.read_text(encoding="utf-8"), encoding="utf-8")
    assert values(installed.run(program)) == {2}
    # Where nothing is installed, a fresh interpreter finds the variable but no ddpfix.pth; multiprocessing's children
    # import the program again, and with it ddpfix.auto.
    seen = answers(unpatched.run(program, PYTHONPATH=str(ROOT)))
    assert {kind for kind, number in seen.items() if number != 2} == {"exec", "subprocess", "shell", "grandchild"}


def test_children_stay_unpatched_where_it_is_off(installed: Place) -> None:
    assert values(installed.run(PROGRAM)) == {0}
    assert values(installed.run("-m", "ddpfix", "run", PROGRAM, DDPFIX="0")) == {0}
