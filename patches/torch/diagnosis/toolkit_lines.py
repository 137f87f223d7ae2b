"""The cheapest cure of an error of DDP as a line to paste, for the toolkit that has wrapped the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, List, Sequence, Tuple

from ...common import lines

_KINDS = ("find", "do_not_find", "not_static", "not_reentrant")
# Frames that are looked at for the one that has wrapped a model.
_FRAMES = 200


def callers() -> Tuple[str, ...]:
    """Return the modules that have led here, the outermost first; a script is named as its path spells it."""
    found: List[str] = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(found) < _FRAMES:
        name = str(frame.f_globals.get("__name__", ""))
        if name == "__main__":
            name = ".".join(Path(frame.f_code.co_filename).with_suffix("").parts[-3:])
        if not found or found[-1] != name:
            found.append(name)
        frame = frame.f_back
    return tuple(reversed(found))


def of(wrapped_by: Sequence[str]) -> lines.Lines:
    """Return the lines of the outermost toolkit that has wrapped a model (:func:`callers`); DDP's where none has."""
    every = lines.every()
    for module in wrapped_by:
        for each in every:
            if any(f"{module}.".startswith(caller) for caller in each.callers):
                return each._replace(**{name: getattr(each, name) or getattr(lines.PLAIN, name) for name in _KINDS})
    return lines.PLAIN


def is_plain(found: lines.Lines) -> bool:
    """Return whether these are the lines of DDP itself."""
    return found.name == lines.PLAIN.name
