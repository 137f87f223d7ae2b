"""Where the matrix and the patches are: in the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def default_path() -> Path:
    """The matrix of the installed package, or the one of the checkout."""
    installed = _PACKAGE / "compat_matrix.yaml"
    return installed if installed.exists() else _PACKAGE.parent / "compat_matrix.yaml"


def patches() -> Path:
    """The folder of the patches."""
    installed = _PACKAGE / "patches"
    return installed if installed.is_dir() else _PACKAGE.parent / "patches"
