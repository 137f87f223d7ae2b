"""Makes the environment of a cell with uv, once; releases that share their dependencies are unpacked beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence

from tests.cells.table import Cell
from tests.wenet import trees

ROOT = Path(__file__).resolve().parent.parent.parent
# Variables of uv: where it keeps its downloads, and whether it compiles what it installs.
CACHE, COMPILE = "UV_CACHE_DIR", "UV_COMPILE_BYTECODE"


# Toolkits whose cells have a torchaudio of their own.
_OWN_AUDIO = ("wenet", "torchaudio")


class NothingToRunError(Exception):
    """The release cannot be had on this machine; the message says how to provide it."""


def made(cell: Cell, folder: Path) -> Path:
    """The interpreter of a cell's environment, which is made in a folder if it is not there yet.

    Raises:
        NothingToRunError: the release is on no registry, and its tree is not there.
    """
    if cell.toolkit == "wenet" and not tags(cell):
        raise NothingToRunError(trees.HOW)
    home = folder / cell.environment
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        _uv("venv", "--clear", "--python", interpreter(cell.fit.python), str(home))
        later = [package for package in cell.packages() if package.startswith("deepspeed==")]
        _install(python, *(package for package in cell.packages() if package not in later))
        if later:
            # It is built against the torch that is there, without any of its kernels. WeNet from 3.0 on imports it.
            os.environ["DS_BUILD_OPS"] = "0"
            _install(python, "--no-build-isolation", *later)
        if cell.requirements is not None and cell.toolkit not in _OWN_AUDIO:
            # The newest release whose reader is Python and soundfile.
            _install(python, "--no-deps", "torchaudio==2.8.0")
        if cell.toolkit != "torchaudio" or cell.fit.pinned:
            _take_audio(home / "lib")
        (home / "complete").touch()
    return python


def variables(cell: Cell, folder: Path) -> Dict[str, str]:
    """The environment variables of a cell's tests; the release itself is unpacked for them if it has to be."""
    home = folder / cell.environment
    found = {"OMP_NUM_THREADS": "1"}
    if cell.toolkit == "wenet":
        only = home / "trees" / cell.version
        only.mkdir(parents=True, exist_ok=True)
        for tag in tags(cell):
            link = only / tag
            if not link.exists():
                link.symlink_to(trees.available()[tag])
        found[trees.VARIABLE] = str(only)
    elif cell.requirements is not None:
        found["PYTHONPATH"] = str(_unpacked(cell, home))
    return found


@contextmanager
def downloads(folder: Optional[Path]) -> Iterator[None]:
    """Within it uv keeps what it downloads beside the environments of a folder, if one is given.

    Files of environments are links to it, so the downloads take no room of their own, but have to go with them. What
    is used once is not compiled as a whole either, which takes minutes; the first import of a module does it.
    """
    changed = {} if folder is None else {CACHE: str(_downloads(folder)), COMPILE: "0"}
    before = {name: os.environ[name] for name in changed if name in os.environ}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            os.environ.pop(name)
        os.environ.update(before)


def _downloads(folder: Path) -> Path:
    return folder.resolve() / "downloads"


def discard(cell: Cell, folder: Path) -> int:
    """Remove a cell's environment, and what was downloaded within :func:`downloads`; returns the bytes they took."""
    places = [folder / cell.environment, _downloads(folder)]
    # A file with several names counts once.
    stats = (path.lstat() for place in places for path in place.rglob("*"))
    taken = sum({found.st_ino: found.st_blocks * 512 for found in stats}.values())
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    return taken


def tags(cell: Cell) -> List[str]:
    """The tags of WeNet that stand for the cell's version, as far as their trees are there."""
    return [tag for tag in trees.available() if trees.VERSIONS[tag] == cell.version]


def _take_audio(folder: Path) -> None:
    # What is compiled in it needs another torch.
    for library in folder.glob("**/torchaudio/lib/*.so"):
        library.unlink()


def _unpacked(cell: Cell, home: Path) -> Path:
    """A folder with nothing but this release in it."""
    release = home / "releases" / cell.version
    if not release.exists():
        part = release.with_name(f"{cell.version}.part")
        shutil.rmtree(part, ignore_errors=True)
        _install(home / "bin" / "python", "--no-deps", "--target", str(part), cell.requirement)
        _take_audio(part)
        # Some releases of SpeechBrain have their own tests in the wheel, under the name of ours.
        shutil.rmtree(part / "tests", ignore_errors=True)
        part.rename(release)
    return release


def _install(python: Path, *packages: str) -> None:
    links = [word for folder in find_links() for word in ("--find-links", folder)]
    _uv("pip", "install", "--python", str(python), *links, *packages)


def _uv(*words: str) -> None:
    # Ranks that import a module for the first time would compile it all at once.
    subprocess.run([sys.executable, "-m", "uv", "--quiet", *words], check=True, env={COMPILE: "1", **os.environ})


def interpreter(version: str) -> str:
    """A CPython of this version: this one, one of those named in TEST_PYTHONS, or what uv finds."""
    if version == "{}.{}".format(*sys.version_info[:2]):
        return sys.executable
    named = os.environ.get("TEST_PYTHONS", "").split(os.pathsep)
    return next((path for path in named if f"/{version}." in path or path.endswith(f"/python{version}")), version)


def find_links() -> Sequence[str]:
    """Folders with wheels that pip is set up to look into; uv does not read pip's settings."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return found.stdout.split() if found.returncode == 0 else []
