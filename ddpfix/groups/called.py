"""How often this rank has called collectives of all ranks, by line: it names a call too many long after that call.

A rank that calls one collective more than the others meets their next one with it, and all calls are shifted from there
on: where they stop at last, their lines tell nothing of the first one. DDP's own collectives are called in C++, and do
not count here.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Any, Callable, Dict, Optional, Tuple

from ddpfix.rules.facts import Called
from ddpfix.user_code import OWN, is_users

# The function with which each collective of torch begins. No method of ProcessGroup is replaced: torch would take it
# for one of a class of the program's own that derives from it.
BEGINS = "_rank_not_in_group"
# The collectives of a program's own; those of FSDP, a layer each, are left out, and have other names.
KINDS = frozenset(
    ("all_reduce", "broadcast", "all_gather", "barrier", "gather", "reduce", "scatter", "reduce_scatter", "all_to_all")
    + ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "monitored_barrier")
)
# Functions of toolkits that only hand a collective on: their callers tell more.
HAND_ON = (
    "barrier",
    "wait_for_everyone",
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "inner",
    "wrapper",
)
# More lines than these are no program's own: nothing is told of them.
_MOST = 64

# A toolkit's function and line, and the user's.
_Key = Tuple[Optional[CodeType], int, Optional[CodeType], int]


class CallCounts:
    """The calls of one rank in one process group of all ranks."""

    def __init__(self) -> None:
        # 0 as long as there is no group of several ranks.
        self._size = 0
        self._kind: Any = None
        self._counts: Dict[_Key, int] = {}
        self._last: Optional[_Key] = None
        # Whether a file is the user's; None for Python's, torch's and ddpfix's own.
        self._files: Dict[str, Optional[bool]] = {}

    def begin(self, size: int, kind: Any) -> None:
        """Count from here on: the process group of all ranks has come up, with so many, and of torch's class."""
        self._size, self._kind, self._last = size, kind, None
        self._counts.clear()

    def counting(self, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Return torch's function with which collectives begin; it counts those of groups of all ranks."""
        record, frame = self._record, sys._getframe

        def begins(group: Any) -> bool:
            if frame(1).f_code.co_name in KINDS:
                record(group, frame(1).f_back)
            return original(group)

        return begins

    def read(self) -> Called:
        """Return what was called until now; nothing where there are too many lines."""
        counts = dict(self._counts)
        if len(counts) > _MOST or self._last is None:
            return Called()
        return Called({_words(key): number for key, number in counts.items()}, _words(self._last))

    def _record(self, group: Any, frame: Optional[FrameType]) -> None:
        # A group of the program's own class may count what is asked of it. None is the group of all ranks.
        if not self._size or group is not None and (type(group) is not self._kind or group.size() != self._size):
            return
        tool: Optional[CodeType] = None
        line = 0
        while frame is not None:
            code = frame.f_code
            is_own = self._is_own(code.co_filename)
            if is_own:
                break
            if is_own is None and code.co_name in KINDS:
                # A collective of objects calls others.
                return
            if is_own is not None and tool is None and code.co_name not in HAND_ON:
                tool, line = code, frame.f_lineno
            frame = frame.f_back
        key = tool, line, None if frame is None else frame.f_code, 0 if frame is None else frame.f_lineno
        if key in self._counts or len(self._counts) <= _MOST:
            self._counts[key] = self._counts.get(key, 0) + 1
        self._last = key

    def _is_own(self, file: str) -> Optional[bool]:
        if file not in self._files:
            self._files[file] = None if is_library(file) else is_users(file)
        return self._files[file]


def is_library(file: str) -> bool:
    """Return whether a file is Python's own, torch's, or ddpfix's."""
    python = os.path.dirname(os.__file__) + os.sep
    is_python = file.startswith(python) and "-packages" not in file
    return is_python or file.startswith(("<frozen", *OWN)) or "/torch/" in file.replace(os.sep, "/")


def _words(key: _Key) -> str:
    """Return a line in words: "save (train.py:17)", "save_checkpoint (trainer.py:1393), called at train.py:30"."""
    tool, line, own, own_line = key
    called = _place(own, own_line) if own is not None else ""
    if tool is None:
        return called
    return f"{_place(tool, line)}, called at {called.rpartition('(')[2].rstrip(')')}" if called else _place(tool, line)


def _place(code: CodeType, line: int) -> str:
    where = f"{os.path.basename(code.co_filename)}:{line}"
    return where if code.co_name == "<module>" else f"{code.co_name} ({where})"
