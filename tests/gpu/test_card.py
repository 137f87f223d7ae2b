"""Lines that only a card runs: their names are right."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict, List

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import launch, pretend  # noqa: E402


@pytest.mark.sampled(inside=False)
@pytest.mark.parametrize("act", ["programs", "hangs", "look", "traced"])
def test_lines_for_a_card_run(act: str) -> None:
    words = [sys.executable, "-m", "tests.gpu.pretend", act]
    ran = subprocess.run(words, env=launch.environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: List[Dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [each["error"] for each in found] == [None] * len(pretend.cells(act)) and found
    if act == "programs":
        # Counted by the profiler, as on a card.
        assert all(each["found"]["counts"]["waits"] == 0 and each["found"]["wrong"] == [] for each in found)
