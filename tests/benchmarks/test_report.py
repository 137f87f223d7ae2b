"""The report has its form: every section is there, with figures that are numbers. How large they are is not tested."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from tests.benchmarks.__main__ import SECTIONS
from tests.support import ranks


def _report(*words: str) -> subprocess.CompletedProcess[str]:
    command: List[str] = [sys.executable, "-m", "tests.benchmarks", *words]
    return subprocess.run(command, cwd=ranks.ROOT, env=ranks.environment(), capture_output=True, text=True, timeout=240)


@pytest.mark.sampled(inside=False)
def test_every_section_reports_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = _report("--quick", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    sections = json.loads(file.read_text())["sections"]
    assert [section["title"] for section in sections] == [title for _, title in SECTIONS.values()]
    for section in sections:
        assert section["title"] in done.stdout
        assert section["figures"], section["title"]
        for figure in section["figures"]:
            assert figure["name"] and math.isfinite(figure["value"]), figure
            assert (figure["met"] is None) == (figure["target"] is None), figure


def test_unknown_section_is_refused_by_name() -> None:
    done = _report("--quick", "layers")
    assert done.returncode == 2
    assert "'layers' is not a section" in done.stderr and "wrapping" in done.stderr
