"""Print the cells, or run some: ``python -m tests.cells [NAMES]``, as ``nox -s cell -- NAMES`` does.

With ``--only FILE`` some files of tests are run, and no result is written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.cells import environment, table
from tests.cells.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cells", description=__doc__)
    parser.add_argument("names", nargs="*", help="cells or toolkits; none means that the cells are listed")
    parser.add_argument("--only", action="append", default=[], metavar="FILE", help="a file of tests to run, not all")
    options = parser.parse_args()
    failed = 0
    for cell in table.chosen(options.names):
        print(f"{cell.name}: Python {cell.fit.python}, {' '.join(cell.packages())}", flush=True)
        if options.names:
            try:
                failed += run(cell, Path(".nox") / "cells", options.only) != 0
            except environment.NothingToRunError as error:
                print(f"not run: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
