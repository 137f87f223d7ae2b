"""The version matrix: each cell is an environment of its own with real wheels, in which the tests are run.

    python -m tests.cells                                     # all cells
    python -m tests.cells transformers-4.36.2 funasr-1.0.19   # some
    python -m tests.cells funasr                              # those of one toolkit
    python -m tests.cells --list

The cells with torch 2.0.1 need CPython 3.8 and some gigabytes for that torch; see ``--list``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
# What is run in a cell of transformers: every family against stock, recomputation, outputs, and two real ranks; DDP
# without the flag on an old torch, and FSDP.
TESTS = ("tests/layerdrop/test_families.py", "tests/layerdrop/test_recompute.py", "tests/layerdrop/test_outputs.py")
RANKS = ("tests/ranks", "-k", "stock_plain or plain_loops or longer or checkpointed_layers or who_else or explicit")
LATE, SHARDED = ("tests/late",), ("tests/sharded",)
TOOLS = ("pytest", "PyYAML", "wrapt", "packaging", "rich", "tomli", "importlib-metadata", "setuptools", "hypothesis")
# Releases whose compiled dependencies are the same share an environment, and are unpacked beside it.
FUNASR = Path(__file__).parent / "funasr" / "requirements.txt"
SPEECHBRAIN = Path(__file__).parent / "speechbrain" / "requirements.txt"
FASTNLP = Path(__file__).parent / "fastnlp" / "requirements.txt"


@dataclass(frozen=True)
class Cell:
    """One environment: a release of a toolkit, what fits it, and the tests that are run in it.

    With ``shared`` the release is unpacked without its dependencies, which come from that list of requirements and from
    ``others``; cells with the same ones share an environment.
    """

    toolkit: str
    version: str
    others: Tuple[str, ...] = ()
    torch: str = "2.13.0"
    python: str = "3.11"
    tests: Tuple[Tuple[str, ...], ...] = (TESTS, RANKS)
    shared: Optional[Path] = None
    # What tells it from another cell of the same release.
    stack: str = ""

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.toolkit, self.version, self.stack)))

    @property
    def environment(self) -> str:
        """The name of its folder."""
        if self.shared is None:
            return self.name
        return "-".join([self.toolkit, *(other.replace("==", "") for other in self.others)])

    def packages(self) -> List[str]:
        if self.shared is not None:
            return ["-r", str(self.shared), *self.others]
        return [f"torch=={self.torch}", f"{self.toolkit}=={self.version}", *self.others, *TOOLS]


def _transformers(version: str, *others: str) -> Cell:
    # Encoders ask for FSDP from 4.46 on.
    sharded = (SHARDED,) if Version(version) >= Version("4.46") else ()
    return Cell("transformers", version, others, tests=(TESTS, RANKS, *sharded))


def _funasr(version: str) -> Cell:
    return Cell("funasr", version, tests=(("tests/funasr",),), shared=FUNASR)


def _speechbrain(version: str, transformers: str, stack: str = "") -> Cell:
    others = (f"transformers=={transformers}",)
    return Cell("speechbrain", version, others, tests=(("tests/speechbrain",),), shared=SPEECHBRAIN, stack=stack)


def _fastnlp(version: str) -> Cell:
    return Cell("fastNLP", version, tests=(("tests/fastnlp",),), shared=FASTNLP)


CELLS = (
    Cell("transformers", "4.21.3", ("numpy<2", "accelerate==0.20.3"), "2.0.1", "3.8", tests=(TESTS, RANKS, LATE)),
    *(_transformers(version, "numpy<2", "accelerate==0.27.2") for version in ("4.30.2", "4.31.0", "4.36.2", "4.40.2")),
    _transformers("4.46.3", "accelerate==1.2.1"),
    _transformers("4.50.3", "accelerate==1.2.1"),
    _transformers("4.57.6", "accelerate==1.10.1"),
    _transformers("5.0.0", "accelerate==1.12.0"),
    _transformers("5.9.0", "accelerate==1.15.0"),
    _transformers("5.23.0", "accelerate==1.15.0"),
    *(_funasr(version) for version in ("1.0.0", "1.0.5", "1.0.11", "1.0.16", "1.0.17", "1.0.19", "1.0.24", "1.0.25")),
    *(_funasr(version) for version in ("1.0.28", "1.0.30", "1.1.6", "1.1.8", "1.1.9", "1.1.16", "1.1.17", "1.2.6")),
    *(_funasr(version) for version in ("1.2.9", "1.3.1", "1.3.2", "1.3.3", "1.4.1", "1.4.2", "1.4.14", "1.4.16")),
    # What the users of the reports have.
    Cell(
        "funasr",
        "1.0.19",
        ("torchaudio==2.0.2", "numpy<2", "hydra-core==1.3.2", "setuptools<70", "jieba", "modelscope"),
        torch="2.0.1",
        python="3.8",
        tests=(("tests/funasr",),),
        stack="torch2.0.1",
    ),
    *(_speechbrain(f"0.5.{number}", "4.30.2") for number in range(4, 16)),
    *(_speechbrain(version, "4.35.2") for version in ("0.5.16", "1.0.0")),
    *(_speechbrain(version, "4.46.3") for version in ("1.0.1", "1.0.2", "1.0.3")),
    *(_speechbrain(version, "4.57.6") for version in ("1.1.0", "1.1.1", "1.1.2")),
    _speechbrain("1.1.2", "5.23.0", "transformers5"),
    *(_fastnlp(version) for version in ("0.5.0", "0.5.5", "0.6.0", "0.7.0", "1.0.0", "1.0.1")),
)


def chosen(names: Sequence[str]) -> List[Cell]:
    """The cells of these names or toolkits, or all; an unknown one raises ValueError with what there is."""
    known: Dict[str, List[Cell]] = {}
    for cell in CELLS:
        known.setdefault(cell.toolkit, []).append(cell)
        known[cell.name] = [cell]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no cell {', '.join(unknown)}; there are {', '.join(known)}")
    found = [cell for name in names for cell in known[name]] if names else list(CELLS)
    return list(dict.fromkeys(found))


def run(cell: Cell, folder: Path, only: Sequence[str] = ()) -> int:
    """Make the environment (once) and run the tests in it, all or some files; returns pytest's exit code."""
    home = folder / cell.environment
    python = home / "bin" / "python"
    if not python.exists():
        make(cell, python)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    if cell.shared:
        environ["PYTHONPATH"] = str(unpacked(cell, python, home))
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    codes = [subprocess.call([*command, *tests], cwd=ROOT, env=environ) for tests in ([only] if only else cell.tests)]
    return max(codes)


def make(cell: Cell, python: Path) -> None:
    uv("venv", "--python", interpreter(cell.python), str(python.parent.parent))
    install(python, *cell.packages())
    if cell.shared:
        # The newest release whose reader is Python and soundfile; what is compiled in it needs another torch.
        install(python, "--no-deps", "torchaudio==2.8.0")
        for library in python.parent.parent.glob("lib/python*/site-packages/torchaudio/lib/*.so"):
            library.unlink()


def unpacked(cell: Cell, python: Path, home: Path) -> Path:
    """A folder with nothing but this release in it."""
    release = home / "releases" / cell.version
    if not release.exists():
        install(python, "--no-deps", "--target", str(release), f"{cell.toolkit}=={cell.version}")
        # Some releases of SpeechBrain have their own tests in the wheel, under the name of ours.
        shutil.rmtree(release / "tests", ignore_errors=True)
    return release


def install(python: Path, *packages: str) -> None:
    links = [word for folder in find_links() for word in ("--find-links", folder)]
    uv("pip", "install", "--compile-bytecode", "--python", str(python), *links, *packages)


def uv(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "--quiet", *words], check=True)


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
    parser.add_argument("names", nargs="*", help="cells (see --list) or toolkits; none means all")
    parser.add_argument("--list", action="store_true", help="print the cells and stop")
    parser.add_argument("--only", action="append", default=[], metavar="FILE", help="a file of tests to run, not all")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ddpfix-cells")
    options = parser.parse_args()
    if options.list:
        for cell in CELLS:
            print(f"{cell.name}: Python {cell.python}, torch {cell.torch}, {', '.join(cell.others)}")
        return 0
    failed = []
    for cell in chosen(options.names):
        print(f"\n== {cell.name}, torch {cell.torch}, Python {cell.python}", flush=True)
        if run(cell, options.folder, options.only) != 0:
            failed.append(cell.name)
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall cells passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
