"""The collective that a stack is in, by the variables of torch's own function; and calls of collectives by line."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
from datetime import timedelta
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from ddpfix.groups import internals
from ddpfix.rules.facts import POINT_TO_POINT, SOON, Called
from ddpfix.user_code import OWN, is_users

# Variables of torch's functions for one sender or receiver.
_PEERS = (("src", "from"), ("dst", "to"))
_FILE = "torch/distributed/distributed_c10d.py"
# Calls that end with an error by themselves: after a time that the program gives, and naming the ranks that are late.
_OWN_LIMIT = ("monitored_barrier",)
# A wait for a key of a store, or for a collective's work, that was given a limit of its own.
_WAIT_WITH_LIMIT = re.compile(r"\.wait\((?!\s*\)|\s*\[[^\]]*\]\s*\))")
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
    *("barrier", "wait_for_everyone", "all_reduce", "reduce", "broadcast", "all_gather", "gather"),
    *("inner", "wrapper"),
)


# More lines than these are no program's own: nothing is told of them.
_MOST = 64

# A toolkit's function and line, and the user's.
_Key = Tuple[Optional[CodeType], int, Optional[CodeType], int]


class Call(NamedTuple):
    """A collective.

    Attributes:
        text: kind and sizes: "all_reduce of 2 x 3 float32", "recv of 4 float32 from rank 1"; "" where there is none.
        peer: the only rank that it waits for, in a call to or from one rank; None for others.
        limit: seconds after which it ends with an error by itself, by the program's own choice; None for others.
    """

    text: str = ""
    peer: Optional[int] = None
    limit: Optional[float] = None


def of(frames: Sequence[FrameType]) -> Call:
    """Return the collective that the program called, from frames of which the outermost is the first."""
    for frame in frames:
        name = frame.f_code.co_name
        if name != "wrapper" and frame.f_code.co_filename.replace(os.sep, "/").endswith(_FILE):
            known = variables(frame)
            peers = [(word, known[each]) for each, word in _PEERS if type(known.get(each)) is int]
            words = f" {peers[0][0]} rank {peers[0][1]}" if peers else ""
            peer = peers[0][1] if peers and name in POINT_TO_POINT else None
            return Call(f"{name}{_sizes(known)}{words}", peer, _limit(name, known))
    if frames and _WAIT_WITH_LIMIT.search(linecache.getline(frames[-1].f_code.co_filename, frames[-1].f_lineno)):
        # The limit cannot be read, since it is an argument of C++: the longest one that counts.
        return Call(limit=SOON)
    return Call()


def variables(frame: FrameType) -> Dict[str, Any]:
    """Return the variables of a function of torch's; nothing of one that a debugger traces, which this might set."""
    return {} if frame.f_trace is not None else dict(frame.f_locals)


def _sizes(known: Dict[str, Any]) -> str:
    sizes = [size for size in map(_size, known.values()) if size]
    plain = [size for size in sizes if not size.endswith("tensors")] or sizes
    return f" of {' and '.join(plain[:2])}" if plain else ""


def _size(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "dtype"):
        return f"{len(value)} tensors"
    shape, kind = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, tuple) or kind is None:
        return ""
    return f"{' x '.join(map(str, shape)) or 'a single'} {str(kind).rpartition('.')[2]}"


def _limit(name: str, known: Dict[str, Any]) -> Optional[float]:
    limit = known.get("timeout") if name in _OWN_LIMIT else None
    return limit.total_seconds() if isinstance(limit, timedelta) else limit_of_own(known.get("group"))


def limits_itself(group: Any) -> bool:
    """Return whether a program gave a group a short limit of its own, whose end it can catch."""
    own = limit_of_own(group)
    return own is not None and own <= SOON


def limit_of_own(group: Any) -> Optional[float]:
    """Return the limit that a program gave a gloo group of its own, whose end it can catch; None for others."""
    torch: Any = sys.modules["torch"]
    own: Optional[float] = None
    # What a group tells of itself differs between releases.
    with contextlib.suppress(Exception):
        backend = internals.backend_of(group, torch.device("cpu"))
        if type(backend).__name__ == "ProcessGroupGloo" and group is not internals.default_group():
            own = internals.limit_of(backend)
    return own


class CallCounts:
    """The calls of one rank in process groups of all ranks, by line: it names a call too many long after that call.

    A rank that calls one collective more than the others meets their next one with it, and all calls are shifted from
    there on: where they stop at last, their lines tell nothing of the first one. DDP's own collectives are called in
    C++, and do not count here.
    """

    def __init__(self) -> None:
        # 0 as long as there is no group of several ranks.
        self._size = 0
        self._kind: Any = None
        self._counts: Dict[_Key, int] = {}
        self._last: Optional[_Key] = None

    def begin(self, size: int, kind: Any) -> None:
        """Count from here on: the process group of all ranks has come up, with so many, and of torch's class."""
        self._size, self._kind, self._counts, self._last = size, kind, {}, None

    def counting(self, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Return torch's function with which collectives begin; it counts those of groups of all ranks."""
        frame = sys._getframe

        def begins(group: Any) -> bool:
            # A group of the program's own class may count what is asked of it. None is the group of all ranks.
            is_asked = self._size and frame(1).f_code.co_name in KINDS
            if is_asked and (group is None or (type(group) is self._kind and group.size() == self._size)):
                self._record(frame(1).f_back)
            return original(group)

        return begins

    def read(self) -> Called:
        """Return what was called until now; nothing where there are too many lines."""
        counts = dict(self._counts)
        if len(counts) > _MOST or self._last is None:
            return Called()
        return Called({_words(*key): number for key, number in counts.items()}, _words(*self._last))

    def _record(self, frame: Optional[FrameType]) -> None:
        tool: Optional[CodeType] = None
        line = 0
        while frame is not None:
            code, is_own = frame.f_code, _is_own(frame.f_code.co_filename)
            if is_own:
                break
            if is_own is None and code.co_name in KINDS:
                # A collective of objects calls others.
                return
            if is_own is not None and tool is None and code.co_name not in HAND_ON:
                tool, line = code, frame.f_lineno
            frame = frame.f_back
        self._last = key = (tool, line, frame and frame.f_code, frame.f_lineno if frame else 0)
        if key in self._counts or len(self._counts) <= _MOST:
            self._counts[key] = self._counts.get(key, 0) + 1


@lru_cache(maxsize=None)
def _is_own(file: str) -> Optional[bool]:
    """Return whether a file is the user's; None for Python's, torch's and ddpfix's own."""
    return None if is_library(file) else is_users(file)


def is_library(file: str) -> bool:
    """Return whether a file is Python's own, torch's, or ddpfix's."""
    python = os.path.dirname(os.__file__) + os.sep
    is_python = file.startswith(python) and "-packages" not in file
    return is_python or file.startswith(("<frozen", *OWN)) or "/torch/" in file.replace(os.sep, "/")


def _words(tool: Optional[CodeType], line: int, own: Optional[CodeType], own_line: int) -> str:
    """Return a line in words: "save (train.py:17)", "save_checkpoint (trainer.py:1393), called at train.py:30"."""
    called = _place(own, own_line) if own is not None else ""
    if tool is None:
        return called
    return f"{_place(tool, line)}, called at {called.rpartition('(')[2].rstrip(')')}" if called else _place(tool, line)


def _place(code: CodeType, line: int) -> str:
    where = f"{os.path.basename(code.co_filename)}:{line}"
    return where if code.co_name == "<module>" else f"{code.co_name} ({where})"
