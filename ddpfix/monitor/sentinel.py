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
import threading
from typing import Any, Callable, Dict, NamedTuple, Optional

from ddpfix import log
from ddpfix.background import Background
from ddpfix.exchange import first_failure, notices
from ddpfix.exchange.connection import Connection, StoreLostError
from ddpfix.exchange.failure_records import End, FailureRecords, Life
from ddpfix.monitor import error_file, killed, last_words, main_thread, processes, sys_exit
from ddpfix.rules import differences
from ddpfix.rules.facts import Called, TrainingProgress
from ddpfix.system import System, Wait

# Seconds between two looks at the store, and how many looks a second the store has to answer at most.
PERIOD, LOOKS = 2.0, 200
# Seconds for which a failed rank waits until the others know the cause.
LINGER = 5.0
# Seconds in which a rank that lost another one finds out why.
SEARCH = 3.0
# Seconds that the end of a process waits for the thread: in order, and after a failure.
_SHORT, _LONG = 5.0, 15.0
# Up to so many ranks each has a connection of its own for this: more might be too many files for the store's process.
_CONNECTIONS = 256
# How many ranks before and after it a rank looks at when one is gone: at their processes, and at their signs of life.
_NEIGHBOURS, _MANY = 64, 256


class Failure(NamedTuple):
    """The failure that ended this rank's program; ``follows``: it says no more than that another rank has ended."""

    text: str
    follows: bool
    write: Callable[[], object]


class Sentinel:
    """The thread of one rank; ``step`` gives the number of the training forward that was begun last. See the module."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        step: Callable[[], Optional[int]],
        done: Callable[[], TrainingProgress] = TrainingProgress,
        called: Callable[[], Called] = Called,
    ) -> None:
        self._connection = Connection(store, notices.PART, size <= _CONNECTIONS)
        self._records = FailureRecords(self._connection, rank)
        self._rank, self._size, self._step, self._work, self._called = rank, size, step, done, called
        self._period = max(PERIOD, size / LOOKS)
        self._notices = notices.Reader(self._period)
        self._main = main_thread.MainThread()
        self._leaving, self._how = threading.Event(), "ended"
        self._cause: Optional[str] = None
        # What was printed last.
        self._said = ""
        self._thread = Background(self._run)

    # In a thread of the program.

    def end(self, how: str) -> None:
        """Stop watching: ``left``, if this rank leaves the group, which it then tells; or ``stopped``."""
        self._how = how
        self._leaving.set()
        self._thread.join(_SHORT)

    def leave(self) -> None:
        """The functions of atexit run: let the thread say how the program ended. A forked child is no rank."""
        if not self._main.is_over():
            # Somebody runs these functions by hand.
            self._how = "stopped"
        self._leaving.set()
        self._thread.join(_LONG if self._main.uncaught() is not None or sys_exit.last() is not None else _SHORT)

    # In the thread of its own.

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            self._watch()
        self._notices.end()
        # Whoever kept the store may have ended by now.
        with contextlib.suppress(Exception):
            if self._how == "left":
                self._leave_well("left its process group")
            elif self._how == "stopped":
                self._records.fall_silent()
            elif self._connection.is_open():
                self._say_how()
        self._connection.close()

    def _watch(self) -> None:
        """Look until this rank leaves, or its program has failed; threads of a failed one may keep the process."""
        is_lost = False
        while self._connection.is_open():
            try:
                if not is_lost:
                    self._records.beat(self._step())
                    self._look()
                    self._notices.look(self._connection.store())
            except Exception as error:
                log.debug(f"the store does not answer: {error!r}")
                is_lost = True
            if self._leaving.wait(self._period) or self._failure() is not None:
                return

    def _look(self) -> None:
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
        how = "reached the end of its program" if self._main.returned() else "exited"
        self._leave_well(how)

    def _leave_well(self, how: str) -> None:
        self._leave(f"rank {self._rank} {how}{self._in_step()}", self._step(), self._work().ended(), self._called())

    def _in_step(self) -> str:
        return last_words.in_step(self._step())

    def _failed(self, failure: Failure) -> None:
        if not failure.follows and self._claims(failure.text):
            failure.write()
            self._say(failure.text)
            self._leave(failure.text)
            self._linger()
            return
        cause = self._found()
        self._say_last(cause or failure.text)
        with contextlib.suppress(Exception):
            self._records.acknowledge()
            self._leave(failure.text)
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

    def _leave(self, text: str, *done: Any) -> None:
        self._records.leave(End(self._rank, text, *done))

    def _in_words(self, end: End) -> str:
        """Return how a rank has ended or left, with what to do where it has done less than this one."""
        step = self._step()
        # This rank may have failed in a backward, whose gradients were still to come.
        own = self._work()._replace(missed=False)
        differ = differences.backwards({end.rank: TrainingProgress(*end.work), self._rank: own})
        if differ:
            return f"{end.text}. {differ}"
        alone = self._called_alone(Called(*end.called))
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
        here, error = self._called(), self._main.uncaught()
        is_own = there.counts and error is not None and last_words.call(error)
        if not is_own or here.counts.get(here.last, 0) <= there.counts.get(here.last, 0):
            return ""
        return here.last

    def _linger(self) -> None:
        """Stay until the others know the cause, as far as they have not ended: torch elastic ends them at once."""
        wait = Wait()
        while wait.seconds() < LINGER:
            if self._records.acknowledged() + self._records.number_of_ends() >= self._size:
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
        return next(map(self._in_words, self._records.ends()), "")

    def _gone(self) -> str:
        """Return the rank whose process has exited without a word, if it is one of this machine."""
        for rank, life in self._lives(_NEIGHBOURS).items():
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
        before = self._lives(_MANY)
        System.pause(2 * self._period + 1)
        for rank, life in self._lives(_MANY).items():
            if before.get(rank) == life:
                return (
                    f"rank {rank} is silent{self._last_seen(life)}: process {life.pid} on {life.host} has given no sign"
                    f" of life for {2 * self._period:.0f} s"
                )
        return ""

    def _last_seen(self, life: Life) -> str:
        here = f"rank {self._rank} is in step {self._step()}" if self._step() else ""
        there = f"last seen in step {life.step}" if life.step else ""
        return "".join(f", {words}" for words in (there, here) if words)

    def _lives(self, around: int) -> Dict[int, Life]:
        """Return the last signs of life of the ranks next to this one."""
        first = max(0, self._rank - around)
        others = [rank for rank in range(first, min(self._size, first + 2 * around)) if rank != self._rank]
        found = {rank: self._records.life(rank) for rank in others}
        return {rank: life for rank, life in found.items() if life is not None}

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
