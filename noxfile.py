"""What is run in environments of its own: ``nox --list``. The README's command runs what needs none."""

from __future__ import annotations

import sys
from pathlib import Path

import nox

from tests.cells import environment, share, table
from tests.cells.__main__ import run

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["style", "later", "rest", "ci"]
# Environments of cells are made by uv as well, but are shared by all cells with the same packages.
FOLDER = Path(__file__).parent / ".nox" / "cells"


@nox.session(venv_backend="none")
@nox.parametrize("cell", [nox.param(cell, id=cell.name) for cell in table.cells()])
def cells(session: nox.Session, cell: table.Cell) -> None:
    """All tests of one release that the matrix names as tested; writes tests/results/CELL.json."""
    _run(session, cell)


@nox.session(venv_backend="none")
@nox.parametrize("cell", [nox.param(cell, id=cell.name) for cell in table.chosen(list(share.SHARE))])
def ci(session: nox.Session, cell: table.Cell) -> None:
    """CI's share of the cells, each with some of its tests."""
    _run(session, cell, share.files(cell.name))


@nox.session(venv_backend="none")
def style(session: nox.Session) -> None:
    """Types, style and format."""
    for words in (("mypy",), ("ruff", "check", "."), ("ruff", "format", "--check", ".")):
        session.run(sys.executable, "-m", *words, external=True)


@nox.session(venv_backend="none")
def later(session: nox.Session) -> None:
    """What the README's command leaves out so that it takes minutes (tests/later.py)."""
    session.run(sys.executable, "-m", "pytest", "-m", "later", "-n", "2", "--dist", "loadfile", external=True)


@nox.session(venv_backend="none")
def rest(session: nox.Session) -> None:
    """What the README's command leaves out, but for the kinds of training loops and the versions of Python."""
    extra = ("-m", "pip", "install", "-q", "-c", "tests/constraints.txt", "-e", ".[rest]")
    session.run(sys.executable, *extra, external=True)
    places = ("tests", "--ignore", "tests/late/loops", "--ignore", "tests/packaging")
    command = (sys.executable, "-m", "pytest", "--rest", "-n", "2", "--dist", "loadfile")
    session.run(*command, *places, external=True)


@nox.session(venv_backend="none")
def cell(session: nox.Session) -> None:
    """Cells by toolkit or name, also of a release that the matrix lacks: nox -s cell -- funasr-1.4.17."""
    for each in table.chosen(session.posargs):
        _run(session, each)


@nox.session(venv_backend="none")
def whole(session: nox.Session) -> None:
    """The sweeps of which a plain pytest runs a sample, whole, in the environment that nox stands in."""
    session.run(sys.executable, "-m", "pytest", "--whole", "-m", "sampled", *session.posargs, external=True)


@nox.session
def release(session: nox.Session) -> None:
    """What is published, built and checked: in dist/, or the folder that is named."""
    needed = nox.project.load_toml("pyproject.toml")["dependency-groups"]["release"]
    session.install("-q", "-c", "tests/constraints.txt", *needed)
    session.run("python", "-m", "tests.packaging.release", *session.posargs)


def _run(session: nox.Session, cell: table.Cell, only: tuple[str, ...] = ()) -> None:
    session.log(f"{cell.name}: Python {cell.fit.python}, {' '.join(cell.packages())}")
    try:
        code = run(cell, FOLDER, only)
    except environment.NothingToRunError as error:
        session.skip(str(error))
    if code:
        session.error(f"pytest ended with {code}")
