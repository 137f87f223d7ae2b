"""Print the cells, or run some: ``python -m tests.cells [NAMES]``, as ``nox -s cell -- NAMES`` does.

    python -m tests.cells --missing                     # the cells that have no result of this matrix
    python -m tests.cells torch --missing --discard     # run those of torch; gigabytes come and go, one cell at a time

What was interrupted goes on where it stopped when the last command is called again. With ``--only FILE`` some files of
tests are run, and no result is written. With ``--sample N`` one in N tests of each file and patch is run, others in
each release; the result says so.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import List

from tests.cells import environment, results, table
from tests.cells.run import run, run_failed

FOLDER = Path(".nox") / "cells"


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


def _code(cell: table.Cell, options: argparse.Namespace) -> int:
    return run_failed(cell, FOLDER) if options.failed else run(cell, FOLDER, options.only, options.sample)


def _size(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of 1 or more")
    return int(word)


def _passed(cell: table.Cell, options: argparse.Namespace, later: List[table.Cell]) -> bool:
    """Run one cell; whether none of its tests failed, also if it cannot be had here."""
    begun, taken = time.monotonic(), 0
    try:
        with environment.downloads(FOLDER if options.discard else None):
            code = _code(cell, options)
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


if __name__ == "__main__":
    sys.exit(main())
