"""Runs a cell: its environment, its tests, and the result that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Sequence

from tests.cells import environment, results
from tests.cells.table import Cell

# pytest: nothing was collected, or deselected all.
_NONE = 5


def run(cell: Cell, folder: Path, only: Sequence[str] = ()) -> int:
    """Run the tests of a cell in its environment; returns the worst exit code of pytest.

    Args:
        cell: the cell.
        folder: where environments are made.
        only: files of tests to run and not all; such a run leaves no result, because it says nothing of the rest.

    Raises:
        NothingToRunError: the release cannot be had here.
    """
    folder = folder.resolve()
    python = environment.made(cell, folder)
    environ = {**os.environ, **environment.variables(cell, folder)}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-p", "tests.cells.record"]
    codes, records, begun = [], [], time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        for tests in [tuple(only)] if only else cell.fit.tests:
            file = Path(place) / "record.json"
            words = [*command, "--record", str(file), *tests, *_alone(cell)]
            codes.append(subprocess.call(words, cwd=environment.ROOT, env=environ))
            if codes[-1] not in (0, 1, _NONE):
                return codes[-1]
            records.append(json.loads(file.read_text()))
    if not only:
        results.write(results.merged(cell, records, time.monotonic() - begun))
    return max(codes)


def _alone(cell: Cell) -> Sequence[str]:
    """Tests of WeNet run on stand-ins as well, which stand for no release."""
    return ("-k", " or ".join(environment.tags(cell))) if cell.toolkit == "wenet" else ()
