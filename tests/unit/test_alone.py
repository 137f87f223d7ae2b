"""A pytest that a test starts is another run, and does not wait at the gate of the one that has started it."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = "import os; from tests.support import alone; print(alone._RUN, os.environ.get('PYTEST_XDIST_TESTRUNUID'))"


def test_children_of_a_worker_do_not_have_the_name_of_its_run() -> None:
    environ = {**os.environ, "PYTEST_XDIST_TESTRUNUID": "run"}
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, stdout=subprocess.PIPE, text=True, check=True)
    assert found.stdout.split() == ["run", "None"]
