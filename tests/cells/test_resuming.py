"""Which cells have no result of this matrix; what ``--discard`` takes away, and when."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
from packaging.version import Version

from tests.cells import __main__ as command
from tests.cells import environment, results, table

RECORD: Dict[str, Any] = {
    "python": "3.11.9",
    "packages": {"torch": "2.4.1"},
    "passed": 3,
    "failed": 0,
    "skipped": 0,
    "patches": ["torch.finalize"],
    "broken": [],
    "failures": [],
}


def recorded(folder: Path, **changed: Any) -> table.Cell:
    (cell,) = table.chosen(["torch-2.4.1"])
    results.write({**results.merged(cell, [RECORD], 1.0), **changed}, folder)
    return cell


def test_a_cell_that_ran_is_not_missing_even_if_a_fix_had_no_test_in_it(tmp_path: Path) -> None:
    cell = recorded(tmp_path)
    assert not results.is_missing(cell, tmp_path)
    assert len(results.cured(cell)) > 10 and "torch.fsdp" not in results.cured(cell)


@pytest.mark.parametrize("changed", [{"recorded": None}, {"failed": 1}, {"cured": ["torch.finalize"]}])
def test_a_result_that_is_not_of_this_matrix_is_missing(changed: Dict[str, Any], tmp_path: Path) -> None:
    """One made by hand, one of tests that failed, one from before the matrix had the other fixes."""
    assert results.is_missing(recorded(tmp_path, **changed), tmp_path)


def test_a_cell_without_a_result_is_missing(tmp_path: Path) -> None:
    (cell,) = table.chosen(["torch-2.4.1"])
    assert results.is_missing(cell, tmp_path)


def test_each_minor_release_of_torch_is_a_cell() -> None:
    minors = table.minors("torch")
    assert [version.release[:2] for version in minors] == [(2, minor) for minor in range(16)]
    assert {Version("2.1.2"), Version("2.12.1"), Version("2.15.0")} <= {*minors}
    assert {*map(str, minors)} <= {cell.version for cell in table.cells() if cell.toolkit == "torch"}


def test_an_environment_and_what_was_downloaded_for_it_are_taken_away(tmp_path: Path) -> None:
    (cell,) = table.chosen(["torch-2.4.1"])
    with environment.downloads(tmp_path):
        kept = Path(os.environ[environment.CACHE])
        assert kept.parent == tmp_path
    assert os.environ.get(environment.CACHE) != str(kept)
    other, own = tmp_path / "other", tmp_path / cell.environment
    for folder in (kept, other, own):
        folder.mkdir()
    (kept / "large").write_bytes(b"x" * 1_000_000)
    os.link(str(kept / "large"), str(own / "large"))
    # Two names of one file.
    assert 1_000_000 <= environment.discard(cell, tmp_path) < 1_100_000
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


class Runs:
    """In place of real runs: which cells ran, and which environments were there at the beginning of each."""

    def __init__(self, folder: Path, stopped_at: str = "") -> None:
        self.folder, self.stopped_at = folder, stopped_at
        self.names: List[str] = []
        self.homes: List[List[str]] = []

    def __call__(self, cell: table.Cell, folder: Path, only: Sequence[str], size: int) -> int:
        if cell.version == self.stopped_at:
            raise KeyboardInterrupt
        if cell.version == "2.1.2":
            raise subprocess.CalledProcessError(2, "uv")
        self.homes.append(sorted(path.name for path in folder.iterdir()))
        (folder / cell.environment).mkdir(exist_ok=True)
        results.write(results.merged(cell, [RECORD], 1.0), self.folder / "results")
        self.names.append(cell.name)
        return 0


def test_what_was_interrupted_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "FOLDER", tmp_path / "cells")
    missing = results.is_missing
    monkeypatch.setattr(results, "is_missing", lambda cell: missing(cell, tmp_path / "results"))
    monkeypatch.setattr("sys.argv", ["cells", "torch", "--missing", "--discard"])
    (tmp_path / "cells").mkdir()

    first = Runs(tmp_path, stopped_at="2.4.1")
    monkeypatch.setattr(command, "run", first)
    with pytest.raises(KeyboardInterrupt):
        command.main()
    assert first.names == ["torch-2.0.1", "torch-2.2.2", "torch-2.3.1"]
    assert "torch-2.1.2 cannot be installed" in capsys.readouterr().out

    second = Runs(tmp_path)
    monkeypatch.setattr(command, "run", second)
    # What could not be installed is tried again, and counts as a failure.
    assert command.main() == 1
    assert second.names[:2] == ["torch-2.4.1", "torch-2.5.1"] and not {*first.names} & {*second.names}
    assert first.homes + second.homes == [[]] * len(first.names + second.names)
    capsys.readouterr()

    monkeypatch.setattr("sys.argv", ["cells", "--missing"])
    assert command.main() == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("torch-")]
    assert [line.partition(":")[0] for line in lines] == ["torch-2.1.2", "torch-2.1.2-layers"]


def test_an_environment_stays_until_the_last_cell_that_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    runs = Runs(tmp_path)
    monkeypatch.setattr(command, "run", runs)
    names = ["funasr-1.0.0", "fastNLP-1.0.1", "funasr-1.4.16"]
    monkeypatch.setattr("sys.argv", ["cells", *names, "--discard"])
    assert command.main() == 0
    assert runs.names == ["funasr-1.0.0", "funasr-1.4.16", "fastNLP-1.0.1"]
    (shared,) = {cell.environment for cell in table.chosen(["funasr-1.0.0"])}
    assert [shared in homes for homes in runs.homes] == [False, True, False]


def test_tests_that_failed_run_again_alone_and_the_result_says_so(tmp_path: Path) -> None:
    failed = {"patches": ["torch.finalize"], "broken": ["torch.divergence"], "failed": 2, "failures": ["a", "b"]}
    (cell,) = table.chosen(["torch-2.4.1"])
    first = results.merged(cell, [{**RECORD, **failed}], 10.0)
    results.write(first, tmp_path)
    assert results.failures(cell, tmp_path) == ["a", "b"] == first["failures"]

    one = {
        **RECORD,
        "patches": ["torch.divergence"],
        "broken": ["torch.hang"],
        "passed": 1,
        "failed": 1,
        "failures": ["b"],
    }
    second = results.with_second(first, one, 2.4)
    assert (second["passed"], second["failed"], second["seconds"]) == (4, 1, 12)
    assert second["again"] == ["a"] and second["failures"] == ["b"] and "torch.hang" not in second["patches"]

    other = {**RECORD, "patches": ["torch.hang"], "passed": 1, "failed": 0, "failures": []}
    third = results.with_second(second, other, 1.0)
    assert (third["passed"], third["failed"], third["again"]) == (5, 0, ["a", "b"]) and "failures" not in third
    assert third["patches"] == ["torch.divergence", "torch.finalize", "torch.hang"]


@pytest.mark.parametrize("changed", [{"passed": 1}, {"passed": 0, "failed": 2, "failures": ["a", "c"]}])
def test_a_second_run_of_other_tests_is_no_second_run(changed: Dict[str, Any]) -> None:
    (cell,) = table.chosen(["torch-2.4.1"])
    first = results.merged(cell, [{**RECORD, "failed": 2, "failures": ["a", "b"]}], 10.0)
    with pytest.raises(ValueError, match="2 tests failed, and not all of them ran again"):
        results.with_second(first, {**RECORD, **changed}, 1.0)
