"""The collective that a stack is in: kind, sizes and limit, from the variables of torch's own function."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
from datetime import timedelta
from types import FrameType
from typing import Any, Dict, NamedTuple, Optional, Sequence

from ddpfix.groups import internals
from ddpfix.rules.facts import POINT_TO_POINT, SOON
from ddpfix.user_code import OWN

# Variables of torch's functions for one sender or receiver.
_PEERS = (("src", "from"), ("dst", "to"))
_FILE = "torch/distributed/distributed_c10d.py"
# Calls that end with an error by themselves: after a time that the program gives, and naming the ranks that are late.
_OWN_LIMIT = ("monitored_barrier",)
# A wait for a key of a store, or for a collective's work, that was given a limit of its own.
_WAIT_WITH_LIMIT = re.compile(r"\.wait\((?!\s*\)|\s*\[[^\]]*\]\s*\))")
# Functions of toolkits that only hand a collective on: their callers tell more.
HAND_ON = (
    *("barrier", "wait_for_everyone", "all_reduce", "reduce", "broadcast", "all_gather", "gather"),
    *("inner", "wrapper"),
)


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


def is_library(file: str) -> bool:
    """Return whether a file is Python's own, torch's, or ddpfix's."""
    python = os.path.dirname(os.__file__) + os.sep
    is_python = file.startswith(python) and "-packages" not in file
    return is_python or file.startswith(("<frozen", *OWN)) or "/torch/" in file.replace(os.sep, "/")
