"""One rank fails: every rank says why, as its last words.

A thread of each rank sees how the rank's own program ended. A failure goes into the process group's store and into
torch elastic's error file; a rank that fails because another one is gone finds the cause in the store. While the
program runs, the thread looks into the store every two seconds (of 400 ranks and more all together 200 times a second).
No rank is ended.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, Callable, Dict, NamedTuple, Optional

from ddpfix import log
from ddpfix.exchange import proposals
from ddpfix.exchange.connection import StoreLostError
from ddpfix.exchange.failure_records import Present
from ddpfix.monitor import processes
from ddpfix.monitor.exit import error_file, last_words
from ddpfix.monitor.watch import Rank, Watch
from ddpfix.rules import endings
from ddpfix.rules.facts import ENDED, EXITED, FAILED, LEFT, UNDONE, End
from ddpfix.rules.finding import Finding
from ddpfix.system import System, Wait

# Seconds for which a failed rank waits until the others know the cause.
LINGER = 5.0
# Seconds in which a rank that lost another one finds out why.
SEARCH = 3.0
# Seconds that the end of a process waits for the thread: in order, and after a failure.
_SHORT, _LONG = 5.0, 15.0
# How many ranks before and after it a rank looks at when one is gone: at their processes, and at their signs of life.
_NEIGHBOURS, _MANY = 64, 256


class Failure(NamedTuple):
    """The failure that ended this rank's program, and what writes it into torch elastic's file."""

    found: Finding
    write: Callable[[], object]


class ProcessEnd(Watch):
    """The thread of one rank that talks; see the module."""

    def __init__(self, store: Any, here: Rank) -> None:
        super().__init__(store, here)
        self._rank, self._step = here.number, here.step
        self._proposals = proposals.Reader(self._pause())
        self._is_lost = False
        self._cause: Optional[Finding] = None
        # What was printed last.
        self._said = ""

    def _patience(self) -> float:
        has_failed = self._how == ENDED and (self._main.uncaught() or last_words.printed()) is not None
        return _LONG if has_failed else _SHORT

    def _look(self) -> None:
        if self._failure() is not None:
            # Threads of a program that has failed may keep the process.
            self._over.set()
            return
        try:
            if not self._is_lost:
                self._records.beat(self._step())
                self._read_cause()
                self._proposals.look(self._connection.store())
        except Exception as error:
            log.debug(f"the store does not answer: {error!r}")
            self._is_lost = True

    def _leave(self) -> None:
        self._proposals.end()
        if self._how == UNDONE:
            self._records.leave(End(self._rank, UNDONE))
        elif self._how == LEFT:
            self._records.leave(self._end(LEFT))
        elif self._connection.is_open():
            failure = self._failure()
            if failure is not None:
                self._failed(failure)
            else:
                self._records.leave(self._end(ENDED if self._main.returned() else EXITED))

    def _read_cause(self) -> None:
        if self._cause is None:
            self._cause = self._records.cause()
            if self._cause is not None:
                self._records.acknowledge()
        elif not self._said:
            # This rank waits, or works on: else it would have failed by now, and these were its last words.
            self._say(self._cause)

    def _failure(self) -> Optional[Failure]:
        """Return the end of the program; None where it runs, has ended well, or nothing is proved."""
        if not self._main.is_over():
            return None
        error, printed = self._main.uncaught(), last_words.printed()
        if error is not None:
            found = last_words.finding(self._rank, self._step(), error)
            return Failure(found, lambda: error_file.write(error))
        if printed is None or self._main.returned():
            return None
        found = endings.failed([self._rank], self._step(), printed.words, follows=printed.follows)
        return Failure(found, lambda: error_file.write_text(found.line, printed.trace))

    def _failed(self, failure: Failure) -> None:
        found, is_first = failure.found, failure.found.kind != endings.FOLLOWED
        try:
            is_first = is_first and self._records.claim(found)
        except Exception as problem:
            # Without the store nobody knows who was first.
            log.debug(f"the store does not answer: {problem!r}")
        if is_first:
            failure.write()
            self._say(found)
            self._records.leave(End(self._rank, FAILED, found.line))
            wait = Wait()
            # Until the others know the cause, as far as they have not ended: torch elastic ends them at once.
            while wait.seconds() < LINGER:
                if self._records.acknowledged() + self._records.number_of_ends() >= self._here.size:
                    return
                wait.pause(0.05)
            return
        self._say_last(self._found() or found)
        with contextlib.suppress(Exception):
            self._records.acknowledge()
            self._records.leave(End(self._rank, FAILED, found.line))
        if error_file.is_wanted():
            # The first failure is the one that elastic takes for the cause.
            error_file.next_second()
            failure.write()

    def _found(self) -> Optional[Finding]:
        """Return why another rank has exited; None where that cannot be known."""
        try:
            return self._cause or self._left_behind() or self._silent()
        except StoreLostError as error:
            return endings.store_lost(str(error))
        except Exception as error:
            log.debug(f"the store does not answer: {error!r}")
            return None

    def _left_behind(self) -> Optional[Finding]:
        """Return a failure that a rank has left in the store, else an exited process, else a rank that was done."""
        wait = Wait()
        while wait.seconds() < SEARCH:
            found = self._records.cause() or self._gone()
            if found is not None:
                return found
            wait.pause(0.05)
        ends, here = self._records.ends(), self._here
        own = End(self._rank, FAILED, "", self._step(), here.work(), here.called())
        return endings.left(ends[0], own, bool(self._call())) if ends else None

    def _gone(self) -> Optional[Finding]:
        """Return the rank whose process has exited without a word, if it is one of this machine."""
        for rank, there in self._alive(_NEIGHBOURS).items():
            if processes.state_of(there) == processes.GONE:
                return endings.killed(self._lost(rank, there), processes.how(there.pid), self._call())
        return None

    def _silent(self) -> Optional[Finding]:
        """Return the rank that gives no sign of life, on whatever machine."""
        before, seconds = self._alive(_MANY), 2 * self._pause()
        System.pause(seconds + 1)
        for rank, there in self._alive(_MANY).items():
            if there.beat and before.get(rank) == there:
                return endings.silent(self._lost(rank, there), seconds)
        return None

    def _call(self) -> str:
        """Return the collective in which this rank has failed; "" for none."""
        error = self._main.uncaught()
        return "" if error is None else last_words.call(error)

    def _lost(self, rank: int, there: Present) -> endings.Lost:
        process = f"process {there.pid} on {there.host}"
        return endings.Lost(rank, process, there.step, self._rank, self._step())

    def _alive(self, around: int) -> Dict[int, Present]:
        """Return the ranks next to this one that have not left."""
        first = max(0, self._rank - around)
        last = min(self._here.size, first + 2 * around)
        return self._records.alive(rank for rank in range(first, last) if rank != self._rank)

    def _say(self, found: Finding) -> bool:
        """Log a line, once where the ranks of a node print into one stream (the trace of each has it); whether here."""
        sys.stdout.flush()
        self._said, is_first = found.line, True
        with contextlib.suppress(Exception):
            is_first = self._records.says_first(found.line)
        (log.error if is_first else functools.partial(log.record, "error"))(found.line, found.data())
        return is_first

    def _say_last(self, found: Finding) -> None:
        """Log why this rank ends as its last words; of a line that was logged already only the beginning is."""
        if found.line == self._said or not self._say(found):
            self._say(endings.above(found))
