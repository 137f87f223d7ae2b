"""Where the matrix and the patches are: in the installed package, or beside it in a checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

_PACKAGE = Path(__file__).parents[1]


def default_path() -> Path:
    """Return the matrix of the installed package, or the one of the checkout."""
    installed = _PACKAGE / "compat_matrix.yaml"
    return installed if installed.exists() else _PACKAGE.parent / "compat_matrix.yaml"


def packed(name: str) -> Optional[bytes]:
    """Return the contents of a file of the package, imported from an archive (zipapp); None where it has a folder."""
    loader: Any = getattr(sys.modules[__name__.partition(".")[0]].__spec__, "loader", None)
    if _PACKAGE.is_dir() or not hasattr(loader, "get_data"):
        return None
    try:
        return bytes(loader.get_data(str(_PACKAGE / name)))
    except OSError:
        return None


def patches() -> Path:
    """Return the folder of the patches."""
    installed = _PACKAGE / "patches"
    return installed if installed.is_dir() else _PACKAGE.parent / "patches"
