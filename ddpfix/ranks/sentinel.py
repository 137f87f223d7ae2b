"""One rank fails: every rank says why, as its last words, and no rank waits for one that will never come.

A thread of each rank sees how the rank's own program ended. A failure goes into the process group's store and into
torch elastic's error file; a rank that fails because another one is gone finds the cause in the store. While the
program runs, the thread looks into the store every two seconds (of 400 ranks and more all together 200 times a second).

A rank is ended only where it can never go on: it has begun a collective that a rank which has ended did not begin, it
has not moved since then, nothing in the program could act upon the error that torch would raise much later, and nobody
has set a limit of his own for collectives.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import threading
import time
from types import FrameType
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddpfix import log
from ddpfix.ranks import collectives, error_file, exits, failure_watch, handlers, last_words, limits, main_thread
from ddpfix.ranks.bulletin import Bulletin, End, Life, is_gone
from ddpfix.ranks.connection import Connection, StoreLostError

# Seconds between two looks at the store, and how many looks a second the store has to answer at most.
PERIOD, LOOKS = 2.0, 200
# Seconds for which a failed rank waits until the others know the cause.
LINGER = 5.0
# Seconds in which a rank that lost another one finds out why.
SEARCH = 3.0
# Seconds that a rank stands still in a collective that cannot end: at least, and until the last one is ended.
GRACE, LAST = 8.0, 20.0
# A limit of collectives below this is the user's own: torch's are ten minutes and thirty.
DEFAULT_LIMIT = 600.0
# Seconds that the end of a process waits for the thread: in order, and after a failure.
_SHORT, _LONG = 5.0, 15.0
# Up to so many ranks each has a connection of its own for this: more might be too many files for the store's process.
_CONNECTIONS = 256
# How many ranks before and after it a rank looks at when one is gone: at their processes, and at their signs of life.
_NEIGHBOURS, _MANY = 64, 256


class FailedExitError(RuntimeError):
    """Stands for an exit with an error in torch elastic's summary."""


class Sentinel(threading.Thread):
    """The thread of one rank; see the module.

    Args:
        store: of the default group.
        rank: this rank.
        size: the number of ranks.
        step: gives the number of the training forward that was begun last.
    """

    def __init__(self, store: Any, rank: int, size: int, step: Callable[[], Optional[int]]) -> None:
        super().__init__(name="ddpfix-sentinel", daemon=True)
        self._connection = Connection(store, "failed", size <= _CONNECTIONS)
        self._bulletin = Bulletin(self._connection, rank)
        self._rank, self._size, self._step = rank, size, step
        self._period = max(PERIOD, size / LOOKS)
        self._grace = max(GRACE, LAST - self._period)
        self._main = main_thread.MainThread()
        # Who made the group in another thread may train there when the program is over.
        self._is_final = threading.current_thread() is threading.main_thread()
        self._pid, self._error_before = os.getpid(), getattr(sys, "last_value", None)
        self._leaving, self._how = threading.Event(), "ended"
        self._cause: Optional[str] = None
        self._ends: List[End] = []
        # Where the main thread stands still, and since when.
        self._still: Tuple[Any, float] = (None, 0.0)

    # In the main thread.

    def end(self, how: str) -> None:
        """Look at nothing any more.

        Args:
            how: ``left``, if this rank leaves the group, which it then tells; or ``stopped``.
        """
        self._how = how
        self._leaving.set()
        if os.getpid() == self._pid and self.is_alive():
            self.join(_SHORT)

    def leave(self) -> None:
        """The process leaves: let the thread say why. A forked child has no thread, and is no rank."""
        if os.getpid() != self._pid or not self.is_alive():
            return
        self._leaving.set()
        self.join(_LONG if self._failure() else _SHORT)

    # In the thread.

    def run(self) -> None:
        with contextlib.suppress(Exception):
            self._watch()
        # Whoever kept the store may have ended by now.
        with contextlib.suppress(Exception):
            if self._how == "left":
                self._leave(f"rank {self._rank} left its process group{self._in_step()}")
            elif self._how == "stopped":
                self._bulletin.fall_silent()
            elif self._how == "ended" and self._connection.is_open():
                self._say_why()
        self._connection.close()

    def _watch(self) -> None:
        is_lost = False
        while self._connection.is_open():
            try:
                if not is_lost:
                    self._bulletin.beat(self._step())
                    self._look()
            except Exception as error:
                log.debug(f"the store does not answer: {error!r}")
                is_lost = True
            if self._leaving.wait(1.0 if self._ends else self._period) or self._main.is_over():
                return

    def _look(self) -> None:
        # A toolkit's own failures are told by the watch that was put in for it.
        if failure_watch.is_watching():
            return
        if self._cause is None:
            self._cause = self._bulletin.cause()
            if self._cause is not None:
                log.error(self._cause)
                self._bulletin.acknowledge()
        self._ends = self._bulletin.ends()
        if self._ends:
            self._end_if_stuck()

    def _end_if_stuck(self) -> None:
        counts = collectives.counts()
        awaited = [end for end in self._ends if collectives.is_beyond(counts, end.counts)]
        frame = main_thread.waiting() if awaited else None
        here = frame and (frame, frame.f_lasti, counts)
        if here is None or here != self._still[0]:
            self._still = here, time.monotonic()
        elif time.monotonic() - self._still[1] > self._grace and self._is_lost(frame):
            _end_process(self._cause or self._in_words(awaited[0]))

    def _is_lost(self, frame: Optional[FrameType]) -> bool:
        """Whether nothing but the end is left for this rank, as far as can be known."""
        known = [limits.shortest(group) for group in collectives.groups()]
        limit = min((each or 0.0 for each in known), default=0.0)
        if limit < DEFAULT_LIMIT:
            return False
        if handlers.may_handle(frame):
            log.on_every_rank(
                "this rank waits in a collective that a rank which has ended never began. Its program may act upon"
                f" the error that torch raises after {limit:g} s, so it is not ended here"
            )
            return False
        return True

    def _failure(self) -> Optional[BaseException]:
        """The error that ended the program; None if there was none, or it was meant."""
        if self._main.returned():
            return None
        error = getattr(sys, "last_value", None)
        if error is not None and error is not self._error_before:
            return None if isinstance(error, KeyboardInterrupt) else error
        return FailedExitError() if exits.last() is not None else None

    def _say_why(self) -> None:
        error = self._failure()
        if error is None or failure_watch.is_told_elsewhere():
            self._leave(f"rank {self._rank} ended{self._in_step()}", self._step())
        elif isinstance(error, FailedExitError):
            self._exited(exits.last())
        else:
            told = last_words.sentence(self._rank, self._step(), error)
            follows = isinstance(error, failure_watch.PeerFailedError) or last_words.follows(error)
            self._failed(told, follows, lambda: error_file.write_uncaught(error))

    def _exited(self, known: Optional[exits.Exit]) -> None:
        if known is None:
            return
        words = known.handled or f"SystemExit: {known.code}{known.place}"
        told = f"rank {self._rank} failed{self._in_step()}: {words}"
        self._failed(told, known.follows, lambda: error_file.write_text(told, known.trace))

    def _in_step(self) -> str:
        return last_words.in_step(self._step())

    def _failed(self, text: str, follows: bool, write: Callable[[], object]) -> None:
        if not follows and self._claims(text):
            write()
            self._say(text)
            self._leave(text)
            self._linger()
            return
        cause = self._found()
        self._say(cause or text)
        with contextlib.suppress(Exception):
            self._bulletin.acknowledge()
            self._leave(text)
        if error_file.is_wanted():
            # The first failure is the one that elastic takes for the cause.
            error_file.next_second()
            write()

    def _claims(self, text: str) -> bool:
        try:
            return self._bulletin.claim(text)
        except Exception as problem:
            # Without the store nobody knows who was first.
            log.debug(f"the store does not answer: {problem!r}")
            return True

    def _leave(self, text: str, step: Optional[int] = None) -> None:
        self._bulletin.leave(End(self._rank, text, collectives.counts() if self._is_final else {}, step))

    def _in_words(self, end: End) -> str:
        """How a rank has ended, with what to do where it had fewer batches than this one."""
        step = self._step()
        if end.step is None or step is None or step <= end.step:
            return end.text
        return (
            f"{end.text}, and this rank is in step {step}. Where ranks have different numbers of batches,"
            " DDPFIX_UNEVEN=stop or pad has them end an epoch together"
        )

    def _linger(self) -> None:
        """Stay until the others know the cause, as far as they have not ended: torch elastic ends them at once."""
        last = time.monotonic() + LINGER
        while time.monotonic() < last:
            if self._bulletin.acknowledged() + self._bulletin.number_of_ends() >= self._size:
                return
            time.sleep(0.05)

    def _found(self) -> str:
        """Why another rank is gone; empty where that cannot be known."""
        try:
            return self._cause or self._left_behind() or self._silent()
        except StoreLostError as error:
            return f"{error}, before this rank could read why: rank 0's, unless a launcher keeps the store"
        except Exception as error:
            log.debug(f"the store does not answer: {error!r}")
            return ""

    def _left_behind(self) -> str:
        """What ranks have left in the store, or a process that is gone."""
        last = time.monotonic() + SEARCH
        while time.monotonic() < last:
            found = self._bulletin.cause() or self._gone() or next(map(self._in_words, self._bulletin.ends()), "")
            if found:
                return found
            time.sleep(0.05)
        return ""

    def _gone(self) -> str:
        """The rank whose process is gone without a word, if it is one of this machine."""
        for rank, life in self._lives(_NEIGHBOURS).items():
            if is_gone(life):
                return (
                    f"rank {rank} ended without a word{self._last_seen(life)}: process {life.pid} on {life.host} is"
                    " gone. It was killed (SIGKILL, as when the system has no memory left) or called os._exit"
                )
        return ""

    def _silent(self) -> str:
        """The rank that gives no sign of life, on whatever machine."""
        before = self._lives(_MANY)
        time.sleep(2 * self._period + 1)
        for rank, life in self._lives(_MANY).items():
            if before.get(rank) == life:
                return (
                    f"rank {rank} is silent{self._last_seen(life)}: process {life.pid} on {life.host} has given no sign"
                    f" of life for {2 * self._period:.0f} s. It was killed, or its machine is gone"
                )
        return ""

    def _last_seen(self, life: Life) -> str:
        here = f"rank {self._rank} is in step {self._step()}" if self._step() else ""
        there = f"last seen in step {life.step}" if life.step else ""
        return "".join(f", {words}" for words in (there, here) if words)

    def _lives(self, around: int) -> Dict[int, Life]:
        """The last signs of life of the ranks next to this one."""
        first = max(0, self._rank - around)
        others = [rank for rank in range(first, min(self._size, first + 2 * around)) if rank != self._rank]
        found = {rank: self._bulletin.life(rank) for rank in others}
        return {rank: life for rank, life in found.items() if life is not None}

    @staticmethod
    def _say(text: str) -> None:
        sys.stdout.flush()
        log.error(text)


def _end_process(cause: str) -> None:
    log.error("this rank waits in a collective that a rank which has ended never began, so its process is ended")
    log.error(failure_watch.peer_message(cause))
    failure_watch.write(cause)
    flush_files()
    os._exit(1)


def flush_files() -> None:
    """Write what is in the buffers of open files: ``os._exit`` does not."""
    for each in gc.get_objects():
        if issubclass(type(each), (io.BufferedWriter, io.TextIOWrapper)):
            with contextlib.suppress(Exception):
                each.flush()
