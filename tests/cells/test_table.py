"""The cells are the releases that the matrix names as tested; a run of one leaves a result."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from packaging.version import Version

from ddpfix.matrix import loader
from tests.cells import results, share, table

WHOLE = loader.load()
TOOLKITS = sorted({patch.toolkit for patch in WHOLE.patches.values()})


@pytest.mark.parametrize("toolkit", sorted({*TOOLKITS} - {*table.FITS}))
def test_what_has_no_cells_of_its_own_comes_with_others(toolkit: str) -> None:
    """As accelerate does with transformers."""
    fitting = {word for cell in table.cells() for word in cell.fit.others}
    rows = [row for row in WHOLE.rows if WHOLE.patches[row.patch].toolkit == toolkit]
    assert {f"{toolkit}=={version}" for row in rows for version in row.tested} <= fitting


def test_every_python_that_the_package_is_said_to_run_on_has_a_cell() -> None:
    text = (table.TESTS.parent / "pyproject.toml").read_text(encoding="utf-8")
    said = re.findall(r"Programming Language :: Python :: (3\.\d+)", text)
    assert said == [f"3.{minor}" for minor in range(8, 16)]
    assert {*said} == {cell.fit.python for cell in table.cells()}


def test_accelerate_is_tried_at_both_ends_of_each_row() -> None:
    known = map(Version, json.loads(table.RELEASES.read_text(encoding="utf-8"))["versions"]["accelerate"])
    plain = sorted(version for version in known if not version.is_prerelease)
    others = {word for cell in table.cells() for word in cell.fit.others}
    tried = {Version(word.partition("==")[2]).release[:2] for word in others if word.startswith("accelerate==")}
    for row in (row for row in WHOLE.rows if WHOLE.patches[row.patch].toolkit == "accelerate"):
        inside = [version for version in plain if row.versions.holds(version)]
        assert {inside[0].release[:2], inside[-1].release[:2]} <= tried, row


def test_the_files_of_cis_share_are_there_and_several_releases_of_each() -> None:
    for name in share.SHARE:
        assert table.chosen([name])
        for file in share.files(name):
            assert (table.TESTS.parent / file).exists(), file
    for toolkit in ("transformers", "funasr", "speechbrain", "fastNLP"):
        versions = [cell.version for cell in table.chosen(list(share.SHARE)) if cell.toolkit == toolkit]
        assert len(set(versions)) >= 2


def record(**more: Any) -> Dict[str, Any]:
    common = {"python": "3.11.9", "packages": {"torch": "2.13.0+cpu"}, "passed": 3, "failed": 0, "skipped": 0}
    return {**common, "patches": ["torch.finalize"], "broken": [], "failures": [], **more}


def test_a_patch_is_in_a_result_if_a_test_passed_and_none_failed(tmp_path: Path) -> None:
    (cell,) = table.chosen(["torch-2.13.0"])
    runs = [record(skipped=1), record(patches=["torch.finalize", "torch.fsdp"], broken=["torch.fsdp"], failed=1)]
    file = results.write(results.merged(cell, runs, 3.4), tmp_path)
    found = json.loads(file.read_text())
    assert file.name == "torch-2.13.0.json" and found["patches"] == ["torch.finalize"] and found["torch"] == "2.13.0"
    assert (found["passed"], found["failed"], found["skipped"], found["seconds"]) == (6, 1, 1, 3)


PROGRAM = """
import pytest

pytestmark = pytest.mark.patches("one", "two")

def test_passes(): pass

@pytest.mark.patches("three")
def test_fails(): assert False

@pytest.mark.patches("four")
def test_is_skipped(): pytest.skip("no")
"""


def test_tests_are_recorded_with_what_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "tests.cells.record", "--record", str(tmp_path / "found")]
    command += ["-p", "no:cacheprovider", "-c", "pyproject.toml", str(tmp_path)]
    done = subprocess.run(command, cwd=table.TESTS.parent, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 1, done.stdout
    found = json.loads((tmp_path / "found").read_text())
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 1, 1)
    assert found["patches"] == ["one", "two"] and found["broken"] == ["one", "three", "two"]
    assert "pytest" not in found["packages"] and found["packages"]["torch"]


def test_every_patch_has_tests_that_stand_for_it() -> None:
    """Told by a marker; without one no cell could name the patch as tested."""
    marked = set()
    for file in table.TESTS.rglob("test_*.py"):
        for words in re.findall(r"mark\.patches\(([^)]*)\)", file.read_text(encoding="utf-8")):
            marked |= set(re.findall(r'"([a-z_0-9]+\.[a-z_0-9]+)"', words))
    fixed = {row.patch for row in WHOLE.rows if row.status == "cured"}
    assert marked <= set(WHOLE.patches), "no such patch"
    assert fixed <= marked, "no test stands for it"


# Which cells have no result of this matrix, and what a second run of the tests that failed changes in one.


def recorded(folder: Path, **changed: Any) -> table.Cell:
    (cell,) = table.chosen(["torch-2.4.1"])
    results.write({**results.merged(cell, [record()], 1.0), **changed}, folder)
    return cell


def test_a_cell_that_ran_is_not_missing_even_if_a_fix_had_no_test_in_it(tmp_path: Path) -> None:
    cell = recorded(tmp_path)
    assert not results.is_missing(cell, tmp_path) and results.is_missing(cell, tmp_path / "no result")
    assert len(results.cured(cell)) > 10 and "torch.fsdp" not in results.cured(cell)


@pytest.mark.parametrize("changed", [{"recorded": None}, {"failed": 1}, {"cured": ["torch.finalize"]}])
def test_a_result_that_is_not_of_this_matrix_is_missing(changed: Dict[str, Any], tmp_path: Path) -> None:
    """One made by hand, one of tests that failed, one from before the matrix had the other fixes."""
    assert results.is_missing(recorded(tmp_path, **changed), tmp_path)


def test_each_minor_release_of_torch_is_a_cell() -> None:
    minors = table.minors("torch")
    assert [version.release[:2] for version in minors] == [(2, minor) for minor in range(16)]
    assert {Version("2.1.2"), Version("2.12.1"), Version("2.15.0")} <= {*minors}
    assert {*map(str, minors)} <= {cell.version for cell in table.cells() if cell.toolkit == "torch"}


def test_tests_that_failed_run_again_alone_and_the_result_says_so(tmp_path: Path) -> None:
    failed = {"patches": ["torch.finalize"], "broken": ["torch.divergence"], "failed": 2, "failures": ["a", "b"]}
    (cell,) = table.chosen(["torch-2.4.1"])
    first = results.merged(cell, [record(**failed)], 10.0)
    results.write(first, tmp_path)
    assert results.failures(cell, tmp_path) == ["a", "b"] == first["failures"]

    one = record(patches=["torch.divergence"], broken=["torch.hang"], passed=1, failed=1, failures=["b"])
    second = results.with_second(first, one, 2.4)
    assert (second["passed"], second["failed"], second["seconds"]) == (4, 1, 12)
    assert second["again"] == ["a"] and second["failures"] == ["b"] and "torch.hang" not in second["patches"]

    other = record(patches=["torch.hang"], passed=1)
    third = results.with_second(second, other, 1.0)
    assert (third["passed"], third["failed"], third["again"]) == (5, 0, ["a", "b"]) and "failures" not in third
    assert third["patches"] == ["torch.divergence", "torch.finalize", "torch.hang"]


@pytest.mark.parametrize("changed", [{"passed": 1}, {"passed": 0, "failed": 2, "failures": ["a", "c"]}])
def test_a_second_run_of_other_tests_is_no_second_run(changed: Dict[str, Any]) -> None:
    (cell,) = table.chosen(["torch-2.4.1"])
    first = results.merged(cell, [record(failed=2, failures=["a", "b"])], 10.0)
    with pytest.raises(ValueError, match="2 tests failed, and not all of them ran again"):
        results.with_second(first, record(**changed), 1.0)
