"""Which code is the user's own, not Python's, an installed package's or ddpfix's; its line; where a class is from."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
from types import FrameType
from typing import Optional, Tuple

_LIBRARIES = tuple({os.path.join(path, "") for path in sysconfig.get_paths().values()})
# The folder of the package, in which this file lies.
_HOME = os.path.dirname(os.path.abspath(__file__))
# In a checkout the patches are beside the engine (ddpfix/patches.py), in a wheel within it.
_BESIDE = os.path.isfile(os.path.join(_HOME, "patches.py"))
OWN = (os.path.join(_HOME, ""), *([os.path.join(os.path.dirname(_HOME), "patches", "")] if _BESIDE else []))
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))


def is_users(file: str) -> bool:
    """Return whether a file is neither Python's own nor an installed package's."""
    # Not made absolute: the folder in which the process works may be gone. Libraries are imported by absolute paths.
    path = os.path.normpath(file)
    library = file.startswith("<") or path.startswith((*_LIBRARIES, *OWN))
    return not library and not any(folder in path for folder in _INSTALLED)


def line(frame: Optional[FrameType]) -> str:
    """Return the innermost line of the user's own files, from a frame outwards: "train.py:88"; "" if there is none."""
    return place(frame)[0]


def place(frame: Optional[FrameType]) -> Tuple[str, str]:
    """Return the same line, and the path of its file; both are "" if there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{os.path.basename(file)}:{frame.f_lineno}", file
        frame = frame.f_back
    return "", ""


def nearest(file: str, attribute: str, near: str) -> str:
    """Return the line of a file that uses an attribute, the nearest to ``near``: "train.py:88"; "" if there is none."""
    with contextlib.suppress(OSError, ValueError), open(file, encoding="utf-8") as opened:
        uses = [number for number, text in enumerate(opened, 1) if re.search(rf"\.{attribute}\b", text)]
        # Of two that are as near, the second: what stands behind the line is too late for it.
        line = min(uses, key=lambda each: (abs(each - int(near.rpartition(":")[2])), -each))
        return f"{os.path.basename(file)}:{line}"
    return ""


def package_that_calls() -> str:
    """Return the installed package whose code has called ddpfix; empty where it is the user's own, or torch."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        file, package = frame.f_code.co_filename, str(frame.f_globals.get("__name__", "")).partition(".")[0]
        # Other patchers wrap with wrapt.
        if not file.startswith(OWN) and package not in ("ddpfix", "wrapt"):
            return "" if package in ("torch", "__main__") or is_users(file) else package
        frame = frame.f_back
    return ""


def whose(package: str) -> str:
    """Return how an argument is called that a package has handed on; "" is the user's own code."""
    return f"what {package} hands to DDP, by its default or by a setting of it," if package else "your own setting"


def module_of(kind: type) -> str:
    """Return the name of a class's module; a user's may have none: one that ``exec`` made without a ``__name__``."""
    return str(getattr(kind, "__module__", ""))


def full_name(kind: type) -> str:
    """Return a class's module and qualified name, as a line shows them."""
    return ".".join(part for part in (module_of(kind), kind.__qualname__) if part)
