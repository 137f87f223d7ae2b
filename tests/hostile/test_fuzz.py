"""The command that looks for inputs by itself: its targets take what is right, and report what is not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import fuzz


@pytest.mark.parametrize("name", list(fuzz.TARGETS))
def test_a_target_takes_what_is_right_and_what_is_cut(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    for content in fuzz.seeds(name):
        for end in (len(content), len(content) // 2, 0):
            fuzz.TARGETS[name](content[:end], folder)


@pytest.mark.sampled(inside=False)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="NOT RUN: pip install '.[fuzz]' runs it")
def test_all_targets_for_some_seconds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.hostile.fuzz", "--seconds", "5"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.count("nothing found") == len(fuzz.TARGETS)
