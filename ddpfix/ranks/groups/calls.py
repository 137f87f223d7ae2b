"""The collective that a stack is in: its kind, the sizes of its tensors, and how long it waits by itself.

It is read from the variables of torch's own function, when a job hangs or a rank fails; nothing is recorded before.
"""

from __future__ import annotations

import os
from datetime import timedelta
from types import FrameType
from typing import Any, Dict, NamedTuple, Optional, Sequence

# Calls to or from one rank.
POINT_TO_POINT = ("send", "recv", "irecv", "isend", "batch_isend_irecv")
# Variables of torch's functions for one sender or receiver.
_PEERS = (("src", "from"), ("dst", "to"))
_FILE = "torch/distributed/distributed_c10d.py"
# Calls that end with an error by themselves: after a time that the program gives, and naming the ranks that are late.
_OWN_LIMIT = ("monitored_barrier",)


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
    """Return the collective that the program called.

    Args:
        frames: of a stack or a traceback, the outermost one first.
    """
    for frame in frames:
        name = frame.f_code.co_name
        if name != "wrapper" and frame.f_code.co_filename.replace(os.sep, "/").endswith(_FILE):
            known = variables(frame)
            peers = [(word, known[each]) for each, word in _PEERS if type(known.get(each)) is int]
            words = f" {peers[0][0]} rank {peers[0][1]}" if peers else ""
            peer = peers[0][1] if peers and name in POINT_TO_POINT else None
            return Call(f"{name}{_sizes(known)}{words}", peer, _limit(name, known))
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
    return limit.total_seconds() if isinstance(limit, timedelta) else None
