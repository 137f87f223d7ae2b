"""Which cells have no result of this matrix, and what a second run of the tests that failed changes in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from packaging.version import Version

from tests.cells import results, table

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
