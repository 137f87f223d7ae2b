"""The report has its form: every section is there, with figures that are numbers. How large they are is not tested."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import SECTIONS
from tests.support import ranks


@pytest.mark.sampled(inside=False)
def test_every_section_reports_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ranks.ROOT, env=ranks.environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    sections = json.loads(file.read_text())["sections"]
    assert [section["title"] for section in sections] == [title for _, title in SECTIONS.values()]
    for section in sections:
        assert section["title"] in done.stdout
        assert section["figures"], section["title"]
        for figure in section["figures"]:
            assert figure["name"] and math.isfinite(figure["value"]), figure
            assert (figure["met"] is None) == (figure["target"] is None), figure
