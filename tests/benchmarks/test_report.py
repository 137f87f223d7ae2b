"""The report has its form: every section is there, with figures that are numbers. How large they are is not tested."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.benchmarks.__main__ import SECTIONS
from tests.support import ranks


@pytest.mark.sampled(inside=False)
def test_every_section_reports_figures() -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick"]
    done = subprocess.run(command, cwd=ranks.ROOT, env=ranks.environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for _, title in SECTIONS.values():
        figures = re.search(rf"^{re.escape(title)} \(\d+ s\)\n((?:  .*\n)+)", done.stdout, re.MULTILINE)
        assert figures is not None, done.stdout
        assert all(re.match(r"  .{50} +-?[\d.]+ ", line) for line in figures[1].splitlines()), figures[1]
