"""Loads the compiled matrix; where it and the patches are: in the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

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
    file, yaml = _PACKAGE / compiled.NAME, source()
    remedy = "reinstall ddpfix" if yaml is None else f"run {COMPILE}"
    if not patches().is_dir():
        raise MatrixError(f"{file}:1: the patches are missing; {remedy}")
    try:
        found = compiled.of(file.read_bytes())
        edited = yaml is not None and found is not None and compiled.digest(yaml.read_bytes()) != found[1]
    except OSError as error:
        raise MatrixError(f"{file}:1: cannot be read ({error.strerror}); {remedy}") from None
    if found is None:
        raise MatrixError(f"{file}:1: is damaged; {remedy}")
    if edited:
        raise MatrixError(f"{yaml}:1: was edited after it was compiled; {remedy}")
    return found[0]


def source() -> Optional[Path]:
    """Return the matrix as it is written, in a checkout; None in the installed package."""
    found = _PACKAGE.parent / "compat_matrix.yaml"
    return None if (_PACKAGE / "patches").is_dir() or not found.is_file() else found


def patches() -> Path:
    """Return the folder of the patches."""
    installed = _PACKAGE / "patches"
    return installed if installed.is_dir() else _PACKAGE.parent / "patches"
