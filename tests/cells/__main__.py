"""Print the cells, or run some: ``python -m tests.cells [NAMES]``, as ``nox -s cell -- NAMES`` does.

    python -m tests.cells --missing                     # the cells that have no result of this matrix
    python -m tests.cells torch --missing --discard     # run those of torch; gigabytes come and go, one cell at a time

What was interrupted goes on where it stopped when the last command is called again. With ``--only FILE`` some files of
tests are run, and no result is written. With ``--sample N`` one in N tests of each file and patch is run, others in
each release; the result says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from tests.cells import environment, results, table

FOLDER = Path(".nox") / "cells"
# pytest: nothing was collected, or deselected all.
_NONE = 5


def main() -> int:
    options = _parser().parse_args()
    found = table.chosen(options.names)
    if options.missing:
        found = [cell for cell in found if results.is_missing(cell)]
    if options.failed:
        found = [cell for cell in found if results.failures(cell)]
    if options.discard:
        found = table.grouped(found)
    failed = 0
    for index, cell in enumerate(found):
        print(f"{cell.name}: Python {cell.fit.python}, {' '.join(cell.packages())}", flush=True)
        if options.names or options.all:
            failed += not _passed(cell, options, found[index + 1 :])
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cells", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="cells or toolkits; none means that the cells are listed")
    parser.add_argument("--all", action="store_true", help="run all cells")
    parser.add_argument("--missing", action="store_true", help="only those that have no result of this matrix")
    parser.add_argument("--failed", action="store_true", help="only the tests that failed, and add that to the results")
    parser.add_argument("--discard", action="store_true", help="remove environment and downloads of each one after it")
    parser.add_argument("--sample", type=_size, default=1, metavar="N", help="one in N tests of each file and patch")
    parser.add_argument("--only", action="append", default=[], metavar="FILE", help="a file of tests to run, not all")
    return parser


def _size(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of 1 or more")
    return int(word)


def _passed(cell: table.Cell, options: argparse.Namespace, later: List[table.Cell]) -> bool:
    """Run one cell; whether none of its tests failed, also if it cannot be had here."""
    begun, taken = time.monotonic(), 0
    try:
        with environment.downloads(FOLDER if options.discard else None):
            failed = options.failed
            code = run_failed(cell, FOLDER) if failed else run(cell, FOLDER, options.only, options.sample)
    except environment.NothingToRunError as error:
        print(f"not run: {error}")
        return True
    except subprocess.CalledProcessError as error:
        # The next cell may well be possible: a release may be missing, or the interpreter for it.
        print(f"{cell.name} cannot be installed: {error}")
        return False
    finally:
        if options.discard and cell.environment not in {other.environment for other in later}:
            taken = environment.discard(cell, FOLDER)
    print(f"{cell.name}: {time.monotonic() - begun:.0f} s in all, {taken / 1e9:.1f} GB taken away", flush=True)
    return code == 0


def run(cell: table.Cell, folder: Path, only: Sequence[str] = (), size: int = 1) -> int:
    """Run the tests of a cell in its environment; returns the worst exit code of pytest.

    A run of some files ``only`` leaves no result, because it says nothing of the rest. Of ``size`` tests of each file
    and patch one is run; neighbouring releases run different ones.

    Raises:
        NothingToRunError: the release cannot be had here.
    """
    python = environment.made(cell, folder.resolve())
    codes, records, begun = [], [], time.monotonic()
    # Tests of WeNet run on stand-ins as well, which stand for no release.
    more = ["-k", " or ".join(environment.tags(cell))] if cell.toolkit == "wenet" else []
    more += ["--sample", str(size), "--turn", str(table.turn(cell))] if size > 1 else []
    for tests in [tuple(only)] if only else cell.fit.tests:
        code, record = _pytest(cell, folder.resolve(), python, (*tests, *more))
        codes.append(code)
        if code not in (0, 1, _NONE):
            return code
        records.append(record)
    if not only:
        results.write(results.merged(cell, records, time.monotonic() - begun, size))
    return max(codes)


def run_failed(cell: table.Cell, folder: Path) -> int:
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


def _pytest(cell: table.Cell, folder: Path, python: Path, tests: Sequence[str]) -> Tuple[int, Dict[str, Any]]:
    """pytest's exit code, and what it recorded of these tests; nothing where it did not run any."""
    environ = {**os.environ, **environment.variables(cell, folder)}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-p", "tests.cells.record"]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "record.json"
        code = subprocess.call([*command, "--record", str(file), *tests], cwd=environment.ROOT, env=environ)
        return code, json.loads(file.read_text()) if code in (0, 1, _NONE) else {}


if __name__ == "__main__":
    sys.exit(main())
