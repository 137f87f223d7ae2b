"""Every Python child of a program is under ddpfix too, whatever starts it; and none is where ddpfix is off."""

from __future__ import annotations

from pathlib import Path
from typing import Set

import pytest

from tests.activation.support import ROOT, Finished, Place
from tests.activation.ways import Way, look, make

PROGRAM = Path(__file__).with_name("children.py")


def others(done: Finished[str], usual: int) -> Set[str]:
    """The kinds of children that answer something else."""
    seen = look(done)
    assert len(seen) == 11
    return {kind for kind, number in seen.items() if number != usual}


def test_children_are_covered(way: Way) -> None:
    assert others(way.run([PROGRAM]), 2) == set()


def test_children_of_a_module_and_of_a_program(request: pytest.FixtureRequest) -> None:
    assert others(make("checkout", request).run(["-m", "tests.activation.children"]), 2) == set()
    assert others(make("run", request).run(["sh", "-c", f"python {PROGRAM}; exit $?"]), 2) == set()


def test_children_of_a_program_with_the_import(installed: Place, unpatched: Place, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import ddpfix.auto\n" + PROGRAM.read_text(encoding="utf-8"), encoding="utf-8")
    assert others(installed.run(program), 2) == set()
    # Where nothing is installed, a fresh interpreter finds the variable but no ddpfix.pth; multiprocessing's children
    # import the program again, and with it ddpfix.auto.
    seen = others(unpatched.run(program, PYTHONPATH=str(ROOT)), 2)
    assert seen == {"exec", "subprocess", "shell", "grandchild"}


def test_children_stay_unpatched_where_it_is_off(installed: Place) -> None:
    assert others(installed.run(PROGRAM), 0) == set()
    assert others(installed.run("-m", "ddpfix", "run", PROGRAM, DDPFIX="0"), 0) == set()
