"""The main thread of this process: whether it is over, and whether an exception has ended the program."""

from __future__ import annotations

import dis
import sys
import threading
from types import FrameType
from typing import Any, Optional


class MainThread:
    """The main thread, which is running now; its outermost frame is kept to see later how it ended."""

    def __init__(self) -> None:
        self._outermost: Optional[FrameType] = None
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None:
            self._outermost, frame = frame, frame.f_back

    @staticmethod
    def is_over() -> bool:
        """Return whether it has ended; threads of the program that are no daemons may still keep the process."""
        return not threading.main_thread().is_alive()

    def returned(self) -> bool:
        """Return whether it ended without an exception, :class:`SystemExit` included; call this when it is over."""
        frame = self._outermost
        if frame is None:
            return True
        code = frame.f_code.co_code
        return not 0 <= frame.f_lasti < len(code) or dis.opname[code[frame.f_lasti]].startswith("RETURN")

    def uncaught(self) -> Optional[BaseException]:
        """Return the exception that ended the program; None where that is not proved, and for an exit or Ctrl-C.

        Consoles, notebooks and test runners set ``sys.last_value`` as well, and go on. Theirs have not passed the
        outermost frame.
        """
        trace: Any = getattr(sys, "last_traceback", None)
        if not self.is_over() or self.returned() or trace is None or trace.tb_frame is not self._outermost:
            return None
        error = getattr(sys, "last_value", None)
        # With a prompt (python -i) Python goes on.
        is_end = isinstance(error, BaseException) and not hasattr(sys, "ps1")
        return None if not is_end or isinstance(error, (KeyboardInterrupt, SystemExit)) else error
