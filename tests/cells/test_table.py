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


@pytest.mark.parametrize("toolkit", sorted({*TOOLKITS} & {*table.FITS}))
def test_every_tested_release_of_the_matrix_is_a_cell(toolkit: str) -> None:
    rows = [row for row in WHOLE.rows if WHOLE.patches[row.patch].toolkit == toolkit]
    versions = {str(version) for row in rows for version in row.tested}
    assert versions and versions <= {cell.version for cell in table.cells() if cell.toolkit == toolkit}


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
    # Beside them, one without the lock for all threads.
    assert {*said, "3.13t"} == {cell.fit.python for cell in table.cells()}


def test_accelerate_is_tried_at_both_ends_of_each_row() -> None:
    known = map(Version, json.loads(table.RELEASES.read_text(encoding="utf-8"))["versions"]["accelerate"])
    plain = sorted(version for version in known if not version.is_prerelease)
    others = {word for cell in table.cells() for word in cell.fit.others}
    tried = {Version(word.partition("==")[2]).release[:2] for word in others if word.startswith("accelerate==")}
    for row in (row for row in WHOLE.rows if WHOLE.patches[row.patch].toolkit == "accelerate"):
        inside = [version for version in plain if row.versions.holds(version)]
        assert {inside[0].release[:2], inside[-1].release[:2]} <= tried, row


def test_lightning_is_tried_at_three_releases() -> None:
    stacks = [cell for cell in table.chosen(["torch"]) if cell.fit.stack.startswith("lightning")]
    assert [cell.fit.others[2] for cell in stacks] == [f"lightning=={cell.fit.stack[9:]}" for cell in stacks]
    assert len(stacks) == 3 and all(f"lightning=={cell.fit.stack[9:]}" in cell.packages() for cell in stacks)


@pytest.mark.parametrize("name", share.SHARE)
def test_the_files_of_cis_share_are_there(name: str) -> None:
    assert table.chosen([name])
    for file in share.files(name):
        assert (table.TESTS.parent / file).exists(), file


@pytest.mark.parametrize("toolkit", ["transformers", "funasr", "speechbrain", "fastNLP"])
def test_cis_share_has_several_releases_of_each(toolkit: str) -> None:
    versions = [cell.version for cell in table.chosen(list(share.SHARE)) if cell.toolkit == toolkit]
    assert len(set(versions)) >= 2


def record(**more: Any) -> Dict[str, Any]:
    common = {"python": "3.11.9", "packages": {"torch": "2.13.0+cpu"}, "passed": 2, "failed": 0, "skipped": 1}
    return {**common, "patches": ["torch.finalize"], "broken": [], "failures": [], **more}


def test_a_patch_is_in_a_result_if_a_test_passed_and_none_failed(tmp_path: Path) -> None:
    (cell,) = table.chosen(["torch-2.13.0"])
    runs = [record(), record(patches=["torch.finalize", "torch.fsdp"], broken=["torch.fsdp"], failed=1)]
    file = results.write(results.merged(cell, runs, 3.4), tmp_path)
    found = json.loads(file.read_text())
    assert file.name == "torch-2.13.0.json" and found["patches"] == ["torch.finalize"] and found["torch"] == "2.13.0"
    assert (found["passed"], found["failed"], found["skipped"], found["seconds"]) == (4, 1, 2, 3)


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
