"""Children that are forked (workers of a loader) leave the files of their parent alone."""

from __future__ import annotations

import os
import weakref
from typing import Any, List

_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()
_WATCHED: List[bool] = []


def watch(owner: Any) -> None:
    """Have ``owner.forked()`` called in forked children. Python cannot take its hook back; it is set once a process."""
    _OPEN.add(owner)
    if not _WATCHED and hasattr(os, "register_at_fork"):
        _WATCHED.append(True)
        os.register_at_fork(after_in_child=_forked)


def forget(owner: Any) -> None:
    """Call it no more."""
    _OPEN.discard(owner)


def _forked() -> None:
    for owner in list(_OPEN):
        owner.forked()
    _OPEN.clear()
