"""Runs a cell: its environment, its tests, and the result that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from tests.cells import environment, results
from tests.cells.table import Cell, turn

# pytest: nothing was collected, or deselected all.
_NONE = 5


def run(cell: Cell, folder: Path, only: Sequence[str] = (), size: int = 1) -> int:
    """Run the tests of a cell in its environment; returns the worst exit code of pytest.

    Args:
        cell: the cell.
        folder: where environments are made.
        only: files of tests to run and not all; such a run leaves no result, because it says nothing of the rest.
        size: one in so many tests of each file and patch is run; neighbouring releases run different ones.

    Raises:
        NothingToRunError: the release cannot be had here.
    """
    python = environment.made(cell, folder.resolve())
    codes, records, begun = [], [], time.monotonic()
    for tests in [tuple(only)] if only else cell.fit.tests:
        code, record = _pytest(cell, folder.resolve(), python, (*tests, *_alone(cell), *_sample(cell, size)))
        codes.append(code)
        if code not in (0, 1, _NONE):
            return code
        records.append(record)
    if not only:
        results.write(results.merged(cell, records, time.monotonic() - begun, size))
    return max(codes)


def run_failed(cell: Cell, folder: Path) -> int:
    """Run only the tests that failed when the cell was run, and add how they ended to its result.

    A machine with other work to do lets tests fail that wait for a limited time, and a whole cell takes half an hour.

    Raises:
        NothingToRunError: the release cannot be had here, or no test of it has failed.
        ValueError: a test that failed is no longer there; the cell has to be run.
    """
    failed = results.failures(cell)
    if not failed:
        raise environment.NothingToRunError(f"no test of {cell.name} has failed")
    python, begun = environment.made(cell, folder.resolve()), time.monotonic()
    code, record = _pytest(cell, folder.resolve(), python, failed)
    if code in (0, 1):
        file = results.FOLDER / f"{cell.name}.json"
        before = json.loads(file.read_text(encoding="utf-8"))
        results.write(results.with_second(before, record, time.monotonic() - begun))
    return code


def _pytest(cell: Cell, folder: Path, python: Path, tests: Sequence[str]) -> Tuple[int, Dict[str, Any]]:
    """pytest's exit code, and what it recorded of these tests; nothing where it did not run any."""
    environ = {**os.environ, **environment.variables(cell, folder)}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-p", "tests.cells.record"]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "record.json"
        code = subprocess.call([*command, "--record", str(file), *tests], cwd=environment.ROOT, env=environ)
        return code, json.loads(file.read_text()) if code in (0, 1, _NONE) else {}


def _sample(cell: Cell, size: int) -> Sequence[str]:
    return ("--sample", str(size), "--turn", str(turn(cell))) if size > 1 else ()


def _alone(cell: Cell) -> Sequence[str]:
    """Tests of WeNet run on stand-ins as well, which stand for no release."""
    return ("-k", " or ".join(environment.tags(cell))) if cell.toolkit == "wenet" else ()
