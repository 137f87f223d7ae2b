"""The main thread of this process: whether it is over, how it ended, and where it waits."""

from __future__ import annotations

import dis
import os
import sys
import threading
from types import FrameType
from typing import Any, Iterator, Optional

# Where a rank waits for others: below torch, the innermost Python function is in one of these.
_WAITING = ("distributed/", "nn/parallel/distributed.py", "autograd/__init__.py", "autograd/graph.py")


class MainThread:
    """The main thread, which is running now; its outermost frame is kept to see later how it ended."""

    def __init__(self) -> None:
        self._outermost: Optional[FrameType] = None
        for frame in _stack():
            self._outermost = frame

    @staticmethod
    def is_over() -> bool:
        """Whether the program has ended; threads of it that are no daemons may still keep the process."""
        return not threading.main_thread().is_alive()

    def returned(self) -> bool:
        """Whether the program ended without an exception, :class:`SystemExit` included; call it when that is over."""
        frame = self._outermost
        if frame is None:
            return True
        code = frame.f_code.co_code
        return not 0 <= frame.f_lasti < len(code) or dis.opname[code[frame.f_lasti]].startswith("RETURN")


def waiting() -> Optional[FrameType]:
    """The innermost frame of the main thread, if that may be waiting for other ranks there."""
    frame = next(_stack(), None)
    torch: Any = sys.modules.get("torch")
    if frame is None or torch is None:
        return None
    root = os.path.join(os.path.dirname(torch.__file__), "")
    file = frame.f_code.co_filename
    return frame if file.startswith(tuple(root + each.replace("/", os.sep) for each in _WAITING)) else None


def _stack() -> Iterator[FrameType]:
    """The frames of the main thread, the innermost one first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back
