"""How the two threads of a rank begin, and how they end: with its process group, its program, or ddpfix.

There are two of them (:mod:`.exit.process_end`, :mod:`.hang`) only because the store can block the one that talks:
while the process that keeps it is stopped, no request is answered. Then the other one still says where its rank waits.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
from types import FrameType
from typing import Any, Callable, NamedTuple, Optional

from ddpfix.exchange.connection import Connection
from ddpfix.exchange.failure_records import Records
from ddpfix.rules.facts import ENDED, UNDONE, Called, End, TrainingProgress
from ddpfix.unlisted_thread import Background

# Seconds between two looks, and how many looks a second the store has to answer at most.
PERIOD, LOOKS = 2.0, 200
# Up to so many ranks each has connections of its own for this: more might be too many files for the store's process.
_CONNECTIONS = 256


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


class Rank(NamedTuple):
    """This rank, and what its threads may ask of it.

    Attributes:
        step: gives the number of the training forward that was begun last.
        work: gives what it has done.
        called: gives the collectives that the program itself has called.
    """

    number: int
    size: int
    step: Callable[[], Optional[int]]
    work: Callable[[], TrainingProgress] = TrainingProgress
    called: Callable[[], Called] = Called


class Watch:
    """A thread of this rank while its process group is up; it runs the methods from :meth:`_run` on."""

    def __init__(self, store: Any, here: Rank) -> None:
        self._here, self._connection = here, Connection(store, here.size <= _CONNECTIONS)
        self._records, self._main = Records(self._connection.store, here.number, here.size), MainThread()
        self._over, self._how = threading.Event(), ENDED
        self._thread: Optional[Background] = None

    def begin(self) -> None:
        """Start the thread."""
        self._thread = Background(self._run)

    def end(self, how: str) -> None:
        """Let the thread say that this rank has LEFT its group or its program has ENDED, or end it: ddpfix is UNDONE.

        A forked child is no rank, and has no such thread.
        """
        # Somebody may run the functions of atexit by hand.
        self._how = UNDONE if how == ENDED and not self._main.is_over() else how
        self._over.set()
        if self._thread is not None:
            self._thread.join(self._patience())

    def _patience(self) -> float:
        """Return the seconds that the end of the process waits for the thread."""
        return 2.0

    def _run(self) -> None:
        is_there = False
        with contextlib.suppress(Exception):
            is_there = self._begins()
            while is_there and self._connection.is_open():
                self._look()
                if self._over.wait(self._pause()):
                    break
        # Whoever kept the store may have ended by now.
        with contextlib.suppress(Exception):
            if is_there:
                self._leave()
        self._connection.close()

    def _begins(self) -> bool:
        """Begin; returns whether the thread has something to do."""
        return True

    def _pause(self) -> float:
        """Return the seconds between two looks."""
        return max(PERIOD, self._here.size / LOOKS)

    def _look(self) -> None:
        """Look once; raises nothing."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Tell the others how this rank has left."""
        raise NotImplementedError

    def _end(self, how: str) -> End:
        """Return the end of this rank, with what it has done."""
        here = self._here
        return End(here.number, how, "", here.step(), here.work().ended(), here.called())
