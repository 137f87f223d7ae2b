"""Loads the compiled matrix; where it and the patches are: in the installed package, or beside it in a checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

from ddpfix.matrix import compiled
from ddpfix.matrix.model import Matrix, MatrixError

_PACKAGE = Path(__file__).parents[1]
# How a checkout gets it anew.
COMPILE = "python -m tests.support.compiled"


def load() -> Matrix:
    """Return the matrix.

    Raises:
        MatrixError: there is none, it is damaged, or ``compat_matrix.yaml`` of the checkout has been edited since.
    """
    file, yaml = _file(compiled.NAME), source()
    remedy = "reinstall ddpfix" if yaml is None else f"run {COMPILE}"
    if not _is_complete():
        raise MatrixError(f"{file}:1: the patches are missing; {remedy}")
    try:
        found = compiled.of(_contents(compiled.NAME))
        edited = yaml is not None and found is not None and compiled.digest(yaml.read_bytes()) != found[1]
    except OSError as error:
        raise MatrixError(f"{file}:1: cannot be read ({error.strerror}); {remedy}") from None
    if found is None:
        raise MatrixError(f"{file}:1: is damaged; {remedy}")
    if edited:
        raise MatrixError(f"{yaml}:1: was edited after it was compiled; {remedy}")
    return found[0]


def _is_complete() -> bool:
    """Return whether the patches are there; in an archive they are."""
    return patches().is_dir() or not _PACKAGE.is_dir()


def _file(name: str) -> Path:
    """Return the path of a file of the package."""
    return _PACKAGE / name


def _contents(name: str) -> bytes:
    """Return the contents of a file of the package, which may be in an archive (zipapp); raise OSError."""
    loader: Any = getattr(sys.modules[__name__.partition(".")[0]].__spec__, "loader", None)
    if _PACKAGE.is_dir() or not hasattr(loader, "get_data"):
        return _file(name).read_bytes()
    return bytes(loader.get_data(str(_file(name))))


def source() -> Optional[Path]:
    """Return the matrix as it is written, in a checkout; None in the installed package."""
    found = _PACKAGE.parent / "compat_matrix.yaml"
    return None if (_PACKAGE / "patches").is_dir() or not found.is_file() else found


def patches() -> Path:
    """Return the folder of the patches."""
    installed = _PACKAGE / "patches"
    return installed if installed.is_dir() else _PACKAGE.parent / "patches"
