"""What is imported where ddpfix is off, and where it is on and no toolkit is imported."""

from __future__ import annotations

import os
from typing import Set

from tests.activation.support import ROOT, Finished, Place

# The module __future__ is seven lines long, and comes with every "from __future__ import annotations".
MODULES = "import sys, __future__; print(*sorted(sys.modules))"
ARMED = {"ddpfix", "ddpfix._boot", "ddpfix._switch", "ddpfix.import_hook"}
WORK = "import json, random, argparse, threading\n"


def modules(done: Finished[str]) -> Set[str]:
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return set(done.stdout.split())


def test_off_imports_what_a_bare_interpreter_does(installed: Place, unpatched: Place) -> None:
    bare = modules(unpatched.run("-c", MODULES))
    assert modules(installed.run("-c", MODULES)) == bare
    assert modules(installed.run("-c", MODULES, DDPFIX="0")) == bare
    # A library may import ddpfix to make a report: the import alone loads nothing else.
    assert modules(installed.run("-c", "import ddpfix\n" + MODULES)) == bare | {"ddpfix"}


def test_armed_stays_asleep_while_no_toolkit_is_imported(installed: Place, unpatched: Place) -> None:
    bare = modules(unpatched.run("-c", WORK + MODULES))
    assert modules(installed.run("-c", WORK + MODULES, DDPFIX="1")) == bare | ARMED


def test_armed_from_the_checkout(unpatched: Place) -> None:
    path = os.pathsep.join([str(ROOT / "ddpfix" / "_site"), str(ROOT)])
    bare = modules(unpatched.run("-c", MODULES))
    assert modules(unpatched.run("-c", MODULES, PYTHONPATH=path, DDPFIX="1")) == bare | ARMED | {"sitecustomize"}
    assert modules(unpatched.run("-c", MODULES, PYTHONPATH=path)) == bare | {"sitecustomize"}


def test_the_first_toolkit_wakes_the_engine(installed: Place) -> None:
    asleep = modules(installed.run("-c", MODULES, DDPFIX="1"))
    awake = modules(installed.run("-c", "import torch\n" + MODULES, DDPFIX="1"))
    assert {"ddpfix.engine", "packaging"} <= awake - asleep
    # The matrix was compiled into the wheel.
    assert "yaml" not in awake
