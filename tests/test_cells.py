"""Two cells of the version matrix, beside the release that the tests themselves run on. All: python -m tests.cells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import cells


@pytest.mark.cells
@pytest.mark.parametrize("version", ("4.36.2", "4.57.6"))
def test_cell(version: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cells", "--folder", str(tmp_path), version]
    done = subprocess.run(command, cwd=cells.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-8000:]


def test_every_tested_release_of_the_matrix_is_a_cell() -> None:
    from ddpfix import matrix

    rows = matrix.load().rows_of("transformers.layerdrop")
    assert {str(version) for row in rows for version in row.tested} == {cell.transformers for cell in cells.CELLS}


def test_unknown_cell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no cell 1\.0; there are 4\.21\.3, "):
        cells.chosen(["1.0"])
