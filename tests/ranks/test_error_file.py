"""The file in which torch elastic looks for the error of a rank: tests/ranks/test_failures.py has its summary."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddpfix.monitor import error_file
from tests.ranks import launch


def written_by(error: Exception) -> bool:
    try:
        raise error
    except type(error):
        return error_file.write(error)


def test_a_file_that_is_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert written_by(KeyError("first"))
    written = path.read_text()
    assert "KeyError: 'first'" in json.loads(written)["message"]["message"]
    assert not written_by(ValueError("second"))
    assert path.read_text() == written


def test_without_elastic_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert not error_file.write(ValueError("alone"))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    assert not error_file.write(ValueError("no such folder"))


FULL = """
import os, resource
from ddpfix.monitor import error_file

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    raise ValueError("the cause")
except ValueError as error:
    print(error_file.write(error))
print(os.listdir(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])))
"""


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    """torchrun reads the file of each rank that failed, and cannot go on if it is damaged."""
    pytest.importorskip("resource")
    environ = launch.environment({"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")})
    command = [sys.executable, "-c", FULL]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["False", "[]"], done
