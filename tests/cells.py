"""The version matrix: each cell is an environment of its own with real wheels, in which the tests are run.

    python -m tests.cells                 # all cells
    python -m tests.cells 4.36.2 4.57.6   # some
    python -m tests.cells --list

The cell with torch 2.0.1 needs CPython 3.8 and some gigabytes for that torch; see ``--list``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import List, Sequence, Tuple

ROOT = Path(__file__).resolve().parent.parent
# What is run in each cell: every family against stock, recomputation, outputs, and two real ranks.
TESTS = ("tests/layerdrop/test_families.py", "tests/layerdrop/test_recompute.py", "tests/layerdrop/test_outputs.py")
RANKS = ("tests/ranks", "-k", "stock_plain or plain_loops or longer or checkpointed_layers or who_else or explicit")
TOOLS = ("pytest", "PyYAML", "wrapt", "packaging", "rich", "tomli", "setuptools", "hypothesis")


@dataclass(frozen=True)
class Cell:
    """One environment: the release of transformers and what fits it."""

    transformers: str
    others: Tuple[str, ...]
    torch: str = "2.13.0"
    python: str = "3.11"

    def packages(self) -> List[str]:
        return [f"torch=={self.torch}", f"transformers=={self.transformers}", *self.others, *TOOLS]


CELLS = (
    Cell("4.21.3", ("numpy<2", "accelerate==0.20.3"), torch="2.0.1", python="3.8"),
    Cell("4.30.2", ("numpy<2", "accelerate==0.27.2")),
    Cell("4.31.0", ("numpy<2", "accelerate==0.27.2")),
    Cell("4.36.2", ("numpy<2", "accelerate==0.27.2")),
    Cell("4.40.2", ("numpy<2", "accelerate==0.27.2")),
    Cell("4.46.3", ("accelerate==1.2.1",)),
    Cell("4.50.3", ("accelerate==1.2.1",)),
    Cell("4.57.6", ("accelerate==1.10.1",)),
    Cell("5.0.0", ("accelerate==1.12.0",)),
    Cell("5.9.0", ("accelerate==1.15.0",)),
    Cell("5.23.0", ("accelerate==1.15.0",)),
)


def chosen(versions: Sequence[str]) -> List[Cell]:
    """The cells of these releases, or all; an unknown one raises ValueError with what there is."""
    known = {cell.transformers: cell for cell in CELLS}
    unknown = [version for version in versions if version not in known]
    if unknown:
        raise ValueError(f"no cell {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[version] for version in versions or known]


def run(cell: Cell, folder: Path) -> int:
    """Make the environment (once) and run the tests in it; returns pytest's exit code."""
    python = folder / cell.transformers / "bin" / "python"
    if not python.exists():
        make(cell, python)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    codes = [subprocess.call([*command, *tests], cwd=ROOT, env=environ) for tests in (TESTS, RANKS)]
    return max(codes)


def make(cell: Cell, python: Path) -> None:
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--python", interpreter(cell.python), str(python.parent.parent)], check=True)
    links = [word for folder in find_links() for word in ("--find-links", folder)]
    subprocess.run([*uv, "pip", "install", "--python", str(python), *links, *cell.packages()], check=True)


def interpreter(version: str) -> str:
    """A CPython of this version: this one, one of those named in TEST_PYTHONS, or what uv finds."""
    if version == "{}.{}".format(*sys.version_info[:2]):
        return sys.executable
    named = os.environ.get("TEST_PYTHONS", "").split(os.pathsep)
    return next((path for path in named if f"/{version}." in path or f"python{version}" in path), version)


def find_links() -> List[str]:
    """Folders with wheels that pip is set up to look into; uv does not read pip's settings."""
    found = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"], stdout=subprocess.PIPE, text=True
    )
    return found.stdout.split() if found.returncode == 0 else []


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests in environments with other releases.")
    parser.add_argument("versions", nargs="*", help="releases of transformers; none means all")
    parser.add_argument("--list", action="store_true", help="print the cells and stop")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ddpfix-cells")
    options = parser.parse_args()
    if options.list:
        for cell in CELLS:
            print(f"{cell.transformers}: Python {cell.python}, {', '.join(cell.packages()[:-len(TOOLS)])}")
        return 0
    failed = []
    for cell in chosen(options.versions):
        print(f"\n== transformers {cell.transformers}, torch {cell.torch}, Python {cell.python}", flush=True)
        if run(cell, options.folder) != 0:
            failed.append(cell.transformers)
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall cells passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
