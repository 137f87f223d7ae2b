"""Some cells of the version matrix, beside the release that the tests themselves run on. All: python -m tests.cells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Dict, Tuple

import pytest

from tests import cells

# With the tests that are run here, each where its cure does most. All of them take hours.
IN_CI: Dict[str, Tuple[str, ...]] = {
    "transformers-4.36.2": ("layerdrop/test_families", "layerdrop/test_outputs"),
    "transformers-4.57.6": ("layerdrop/test_recompute", "sharded/test_sharded"),
    "funasr-1.0.5": ("precision",),
    "funasr-1.0.17": ("batches", "uneven"),
    "funasr-1.0.19": ("entries", "unused"),
    "funasr-1.1.16": ("accumulation", "overrides"),
    "funasr-1.4.16": ("checkpoint", "layerdrop", "undo", "uneven"),
    "speechbrain-0.5.9": ("stages",),
    "speechbrain-0.5.13": ("accumulation",),
    "speechbrain-0.5.16": ("accumulation", "options", "options_yaml", "options_device"),
    "speechbrain-1.0.3": ("checkpointing", "layerdrop", "uneven", "unused"),
    "speechbrain-1.1.2-transformers5": ("options", "recipe", "unused"),
    "fastNLP-0.7.0": ("unused",),
    "fastNLP-1.0.1": ("children", "layerdrop", "overrides", "unused"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cells")


@pytest.mark.cells
@pytest.mark.parametrize("name", IN_CI)
def test_cell(name: str, folder: Path) -> None:
    toolkit = name.partition("-")[0].lower()
    files = [word if "/" in word else f"{toolkit}/test_{word}" for word in IN_CI[name]]
    only = [f"--only=tests/{file}.py" for file in files]
    command = [sys.executable, "-m", "tests.cells", "--folder", str(folder), *only, name]
    done = subprocess.run(command, cwd=cells.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.parametrize("toolkit", ["transformers", "funasr", "speechbrain", "fastNLP"])
def test_every_tested_release_of_the_matrix_is_a_cell(toolkit: str) -> None:
    from ddpfix.matrix import loader

    whole = loader.load()
    rows = [row for row in whole.rows if whole.patches[row.patch].toolkit == toolkit]
    tested = {str(version) for row in rows for version in row.tested}
    assert tested <= {cell.version for cell in cells.CELLS if cell.toolkit == toolkit}


def test_unknown_cell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no cell 1\.0; there are transformers, transformers-4\.21\.3, "):
        cells.chosen(["1.0"])


def test_cells_are_chosen_by_name_or_toolkit() -> None:
    assert [cell.version for cell in cells.chosen(["funasr-1.0.19", "funasr-1.0.19"])] == ["1.0.19"]
    assert {cell.toolkit for cell in cells.chosen(["funasr"])} == {"funasr"}
    assert len({cell.name for cell in cells.CELLS}) == len(cells.CELLS) == len(cells.chosen([]))
