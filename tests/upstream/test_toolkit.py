"""``python -m tests.upstream.toolkit`` on a toolkit that is made here: what becomes worse under ddpfix is found."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from tests.upstream import sources, toolkit
from tests.upstream.outcomes import STOCK
from tests.upstream.source_suite import SourceError, SourceSuite

pytest.importorskip("xdist", reason="NOT RUN: suites run under pytest-xdist, which the extra `test` brings")
# Stands for a toolkit: what is installed, and where its tests are.
SOURCE = sources.Source("wrapt", "version.txt", ("tests",), ("tests/test_*.py",), "the tag VERSION")
TESTS = """
import os
import unittest
import pytest
import torch

def test_both(): pass
def test_only_stock(): assert "DDPFIX" not in os.environ
def test_neither(): assert False
@pytest.mark.parametrize("value", ["a", "b"])
def test_each(value): assert value == "a" or "DDPFIX" in os.environ
def test_left_out(): os._exit(1)
@pytest.mark.skip
def test_marked(): pass
class TestMore(unittest.TestCase):
    def test_skipped(self): self.skipTest("because")
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "checkout"
    (folder / "tests").mkdir(parents=True)
    (folder / "version.txt").write_text(metadata.version("wrapt"), encoding="utf-8")
    (folder / "tests" / "test_one.py").write_text(TESTS, encoding="utf-8")
    (folder / "tests" / "test_never.py").write_text("raise SystemExit(1)", encoding="utf-8")
    monkeypatch.setitem(sources.SOURCES, "made", SOURCE)
    monkeypatch.setitem(sources.LEFT_OUT, "wrapt", {"test_never": "a file", "test_left_out": "a test"})
    monkeypatch.setattr(toolkit, "RESULTS", tmp_path)
    return folder


@pytest.mark.sampled(inside=False, cells=True)
def test_what_is_worse_under_ddpfix_is_found_and_written(checkout: Path, tmp_path: Path) -> None:
    assert toolkit.main(["made", "--source", str(checkout)]) == 1
    found = json.loads((tmp_path / f"wrapt-{metadata.version('wrapt')}.json").read_text(encoding="utf-8"))
    assert found["worse"] == ["tests/test_one.py::test_only_stock"]
    assert found["other"] == {
        "tests/test_one.py::test_each[b]": {STOCK: "failed", "auto": "passed"},
        "tests/test_one.py::test_only_stock": {STOCK: "passed", "auto": "failed"},
    }
    counts = {"passed": 3, "failed": 2, "skipped": 2}
    assert found["files"] == {"tests/test_one.py": {STOCK: counts, "auto": counts}}
    # Only the patched run had them.
    assert any(name.startswith("torch.") for name in found["applied"]) and found["not_run"] == []


def test_a_file_that_cannot_run_says_nothing() -> None:
    """Every test fails in both where a library is missing; that is no proof of anything."""
    files = {"broken": {STOCK: {"failed": 2, "skipped": 1}}, "skipped": {STOCK: {"skipped": 1}}}
    files["good"] = {STOCK: {"failed": 2, "passed": 1}}
    files["mended"] = {STOCK: {"failed": 1}, "auto": {"passed": 1}}
    found = {"files": files, "other": {"broken::test": {}, "mended::test": {}}, "not_run": ["late"]}
    assert toolkit.saying_nothing(found) == ["broken"]
    kept = toolkit.without(found, ["broken"])
    assert set(kept["files"]) == {"skipped", "good", "mended"} and set(kept["other"]) == {"mended::test"}
    assert kept["not_run"] == ["broken", "late"]


def test_a_checkout_of_another_release_is_refused(checkout: Path, tmp_path: Path) -> None:
    (checkout / "version.txt").write_text("0.0.1", encoding="utf-8")
    with pytest.raises(SourceError, match=r"is 0\.0\.1, and wrapt .* is installed; check out the tag VERSION"):
        SourceSuite(SOURCE, checkout, tmp_path / "copy")


def test_no_result_has_a_test_that_is_worse() -> None:
    """What is in the repository: each run was patched, and no test has become worse."""
    for found in toolkit.results():
        assert found["applied"] != [] and found["worse"] == [] == toolkit.saying_nothing(found), found["toolkit"]
        assert set(found["left_out"]) == set(sources.LEFT_OUT[found["toolkit"]])
