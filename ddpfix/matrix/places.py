"""Where the matrix and the patches are: in the installed package, or beside it in a checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

_PACKAGE = Path(__file__).parents[1]


def is_complete() -> bool:
    """Return whether the patches are there; in an archive they are."""
    return patches().is_dir() or not _PACKAGE.is_dir()


def file(name: str) -> Path:
    """Return the path of a file of the package."""
    return _PACKAGE / name


def contents(name: str) -> bytes:
    """Return the contents of a file of the package, which may be in an archive (zipapp); raise OSError."""
    loader: Any = getattr(sys.modules[__name__.partition(".")[0]].__spec__, "loader", None)
    if _PACKAGE.is_dir() or not hasattr(loader, "get_data"):
        return file(name).read_bytes()
    return bytes(loader.get_data(str(file(name))))


def source() -> Optional[Path]:
    """Return the matrix as it is written, in a checkout; None in the installed package."""
    found = _PACKAGE.parent / "compat_matrix.yaml"
    return None if (_PACKAGE / "patches").is_dir() or not found.is_file() else found


def patches() -> Path:
    """Return the folder of the patches."""
    installed = _PACKAGE / "patches"
    return installed if installed.is_dir() else _PACKAGE.parent / "patches"
