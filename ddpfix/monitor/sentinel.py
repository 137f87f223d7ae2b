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
from ddpfix.exchange import first_failure, notices
from ddpfix.exchange.connection import StoreLostError
from ddpfix.exchange.failure_records import FailureRecords
from ddpfix.exchange.presence import Present
from ddpfix.monitor import error_file, killed, last_words, processes, sys_exit
from ddpfix.monitor.watch import Rank, Watch
from ddpfix.rules import differences
from ddpfix.rules.facts import ENDED, EXITED, FAILED, LEFT, UNDONE, Called, End
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
    """The failure that ended this rank's program; ``follows``: it says no more than that another rank has ended."""

    text: str
    follows: bool
    write: Callable[[], object]


class Sentinel(Watch):
    """The thread of one rank that talks; see the module."""

    def __init__(self, store: Any, here: Rank) -> None:
        super().__init__(store, here)
        self._rank, self._step = here.number, here.step
        self._records = FailureRecords(self._connection, here.number)
        self._notices = notices.Reader(self._pause())
        self._is_lost = False
        self._cause: Optional[str] = None
        # What was printed last.
        self._said = ""

    def begin(self) -> None:
        sys_exit.watch()
        super().begin()

    def end(self, how: str) -> None:
        super().end(how)
        if self._how != ENDED:
            # At the end of the program a trace asks for the call that has ended it.
            sys_exit.forget()

    def _patience(self) -> float:
        has_failed = self._how == ENDED and (self._main.uncaught() is not None or sys_exit.last() is not None)
        return _LONG if has_failed else _SHORT

    def _look(self) -> None:
        if self._failure() is not None:
            # Threads of a program that has failed may keep the process.
            self._over.set()
            return
        try:
            if not self._is_lost:
                self._presence.beat(self._step())
                self._read_cause()
                self._notices.look(self._connection.store())
        except Exception as error:
            log.debug(f"the store does not answer: {error!r}")
            self._is_lost = True

    def _leave(self) -> None:
        self._notices.end()
        if self._how == LEFT:
            self._leave_well(LEFT, "left its process group")
        elif self._how == UNDONE:
            self._presence.leave(End(self._rank, UNDONE))
        elif self._connection.is_open():
            self._say_how()

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
        error, known = self._main.uncaught(), sys_exit.last()
        if error is not None:
            is_peers = isinstance(error, first_failure.PeerFailedError) or last_words.follows(error)
            text = last_words.sentence(self._rank, self._step(), error)
            return Failure(text, is_peers, lambda: error_file.write(error))
        if known is None:
            return None
        words = known.handled or f"SystemExit: {known.code}{known.place}"
        text = f"rank {self._rank} failed{self._in_step()}: {words}"
        return Failure(text, known.follows, lambda: error_file.write_text(text, known.trace))

    def _say_how(self) -> None:
        failure = self._failure()
        if failure is not None:
            self._failed(failure)
            return
        if self._main.returned():
            self._leave_well(ENDED, "reached the end of its program")
        else:
            self._leave_well(EXITED, "exited")

    def _leave_well(self, how: str, words: str) -> None:
        self._presence.leave(self._end(how, f"rank {self._rank} {words}{self._in_step()}"))

    def _in_step(self) -> str:
        return last_words.in_step(self._step())

    def _failed(self, failure: Failure) -> None:
        if not failure.follows and self._claims(failure.text):
            failure.write()
            self._say(failure.text)
            self._presence.leave(End(self._rank, FAILED, failure.text))
            self._linger()
            return
        cause = self._found()
        self._say_last(cause or failure.text)
        with contextlib.suppress(Exception):
            self._records.acknowledge()
            self._presence.leave(End(self._rank, FAILED, failure.text))
        if error_file.is_wanted():
            # The first failure is the one that elastic takes for the cause.
            error_file.next_second()
            failure.write()

    def _claims(self, text: str) -> bool:
        try:
            return self._records.claim(text)
        except Exception as problem:
            # Without the store nobody knows who was first.
            log.debug(f"the store does not answer: {problem!r}")
            return True

    def _in_words(self, end: End) -> str:
        """Return how a rank has ended or left, with what to do where it has done less than this one."""
        step = self._step()
        # This rank may have failed in a backward, whose gradients were still to come.
        own = self._here.work()._replace(missed=False)
        differ = differences.backwards({end.rank: end.work, self._rank: own})
        if differ:
            return f"{end.text}. {differ}"
        alone = self._called_alone(end.called)
        if alone:
            return (
                f"{end.text}, without calling the collective in which this rank fails ({alone}). Call it on all ranks"
                " or none"
            )
        if end.step is None or step is None or step <= end.step:
            return end.text
        return (
            f"{end.text}, and this rank is in step {step}. With uneven data, DDPFIX_UNEVEN=stop or pad ends the epoch"
            " on all ranks together"
        )

    def _called_alone(self, there: Called) -> str:
        """Return the line of the collective in which this rank fails, if the other one has called it less often."""
        here, error = self._here.called(), self._main.uncaught()
        is_own = there.counts and error is not None and last_words.call(error)
        if not is_own or here.counts.get(here.last, 0) <= there.counts.get(here.last, 0):
            return ""
        return here.last

    def _linger(self) -> None:
        """Stay until the others know the cause, as far as they have not ended: torch elastic ends them at once."""
        wait = Wait()
        while wait.seconds() < LINGER:
            if self._records.acknowledged() + self._presence.number_of_ends() >= self._here.size:
                return
            wait.pause(0.05)

    def _found(self) -> str:
        """Return why another rank has exited; empty where that cannot be known."""
        try:
            return self._cause or self._left_behind() or self._silent()
        except StoreLostError as error:
            return f"{error} before this rank could read the cause; it was rank 0, unless a launcher hosts the store"
        except Exception as error:
            log.debug(f"the store does not answer: {error!r}")
            return ""

    def _left_behind(self) -> str:
        """Return a failure that a rank has left in the store, else an exited process, else a rank that was done."""
        wait = Wait()
        while wait.seconds() < SEARCH:
            found = self._records.cause() or self._gone()
            if found:
                return found
            wait.pause(0.05)
        return next(map(self._in_words, self._presence.ends()), "")

    def _gone(self) -> str:
        """Return the rank whose process has exited without a word, if it is one of this machine."""
        for rank, life in self._alive(_NEIGHBOURS).items():
            if processes.is_gone(life):
                return (
                    f"rank {rank} ended without a word{self._last_seen(life)}: process {life.pid} on {life.host} has"
                    f" exited. {killed.how(life.pid)}{self._own_call()}"
                )
        return ""

    def _own_call(self) -> str:
        """Return the collective in which this rank has failed, in a sentence."""
        error = self._main.uncaught()
        call = "" if error is None else last_words.call(error)
        return f". Rank {self._rank} failed in {call}" if call else ""

    def _silent(self) -> str:
        """Return the rank that gives no sign of life, on whatever machine."""
        before, seconds = self._alive(_MANY), 2 * self._pause()
        System.pause(seconds + 1)
        for rank, life in self._alive(_MANY).items():
            if life.beat and before.get(rank) == life:
                return (
                    f"rank {rank} is silent{self._last_seen(life)}: process {life.pid} on {life.host} has given no sign"
                    f" of life for {seconds:.0f} s"
                )
        return ""

    def _last_seen(self, life: Present) -> str:
        here = f"rank {self._rank} is in step {self._step()}" if self._step() else ""
        there = f"last seen in step {life.step}" if life.step else ""
        return "".join(f", {words}" for words in (there, here) if words)

    def _alive(self, around: int) -> Dict[int, Present]:
        """Return the ranks next to this one that have not left."""
        first = max(0, self._rank - around)
        last = min(self._here.size, first + 2 * around)
        return self._presence.alive(rank for rank in range(first, last) if rank != self._rank)

    def _say(self, text: str) -> bool:
        """Log a line, once where the ranks of a node print into one stream (the trace of each has it); whether here."""
        sys.stdout.flush()
        self._said = text
        is_first = True
        with contextlib.suppress(Exception):
            is_first = self._records.says_first(text)
        (log.error if is_first else functools.partial(log.record, "error"))(text)
        return is_first

    def _say_last(self, text: str) -> None:
        """Log why this rank ends as its last words; of a line that was logged already only the beginning is."""
        if text == self._said or not self._say(text):
            head, follows, _ = text.partition(": ")
            self._say(f"this rank ends because {head}{' (above)' if follows else ''}")
