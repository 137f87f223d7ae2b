"""What may be shown: no home folder, and no user's name."""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path
from typing import Optional


def text(words: str, home: Optional[str] = None, user: Optional[str] = None) -> str:
    """Words in which the home folder is ``~``, and the user's name in a path is ``USER``; root is everybody's."""
    home = _home() if home is None else home
    if len(home) > 1:
        words = re.sub(re.escape(home.rstrip("/")) + r"(?![\w.-])", "~", words)
    user = _user() if user is None else user
    if user and user != "root":
        words = re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "USER", words)
    return words


def path(place: object) -> str:
    """Return a path as :func:`text` has it."""
    return text(os.fspath(place) if isinstance(place, (str, os.PathLike)) else str(place))


def error(caught: BaseException) -> str:
    """Return an error in one short line."""
    lines = str(caught).strip().splitlines() or [""]
    return text(f"{type(caught).__name__}: {lines[0]}"[:300].rstrip(": "))


def _home() -> str:
    try:
        return str(Path.home())
    except (RuntimeError, OSError, KeyError):
        # A user without an entry and without HOME, as in many containers.
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
