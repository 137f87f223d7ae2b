"""The thread of a rank that sees when ranks wait for long, and has one rank say which ones do not wait, and where.

The thread looks at its own rank every two seconds, and talks to the others only when no collective has begun for half
of the limit. A rank that has waited in one place for the whole limit raises an alarm: every rank tells where it is,
and the lowest one that does so says what follows from it. Then each writes its stacks, and the job goes on waiting.
Only DDPFIX_HANG_EXIT, which is off by default, has it ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

from ddpfix import log
from ddpfix.exchange.failure_records import HangReport, Present
from ddpfix.groups import calls, internals, timeouts
from ddpfix.monitor import processes
from ddpfix.monitor.exit import error_file
from ddpfix.monitor.position import Tracker
from ddpfix.monitor.watch import LOOKS, PERIOD, Rank, Watch
from ddpfix.rules.facts import GONE, LEFT, SILENT, STOPPED, TRACED, UNDONE, Position, SilentRank
from ddpfix.rules.finding import Finding
from ddpfix.rules.hang import sentences
from ddpfix.rules.hang.judge import judge
from ddpfix.system import System

# Of the limit of a process group: what is said has to come before its collectives give up.
PART = 0.5
# How a rank is whose process is so.
_ABSENT = {processes.GONE: GONE, processes.STOPPED: STOPPED, processes.TRACED: TRACED}


class Alarm:
    """One alarm that this rank has answered after ``since`` seconds without a collective, and what was then found."""

    def __init__(self, number: int, since: float) -> None:
        self.number, self.at, self.since = number, System.monotonic(), since
        self.told: Optional[HangReport] = None
        # Whether this rank has said it, and when each rank has learned of it.
        self.is_ours, self.told_at = False, 0.0

    @property
    def found(self) -> Optional[Finding]:
        return None if self.told is None else self.told.found


class Monitor(Watch):
    """The thread of one rank that watches; see the module.

    Args:
        hang: how many seconds a rank waits before it is said.
        exit: how long the job goes on after that; None for ever.
        folder: of the stacks, as the user has it; "" for one below the folder for temporary files.
    """

    def __init__(self, store: Any, here: Rank, hang: float, exit: Optional[float] = None, folder: str = "") -> None:
        super().__init__(store, here)
        self._rank, self._size, self._folder = here.number, here.size, folder
        self._hang, self._exit = hang, exit
        self._tracker = Tracker(here)
        # The store may be that of rank 0, which tells nothing any more once it is stopped.
        self._keeper: Optional[Present] = None
        self._number = 0
        self._alarm: Optional[Alarm] = None
        self._asked = self._raised = System.monotonic()
        self._is_lost = False
        # The limit in force, as it was found last.
        self._least = hang

    def _begins(self) -> bool:
        try:
            self._records.enter()
            self._number = self._records.alarm()
            self._limit()
        except Exception as error:
            log.debug(f"hangs are not detected: the store does not answer: {error!r}")
            return False
        return True

    def _leave(self) -> None:
        own = self._records.of(self._rank)
        # The thread that gives signs of life knows better how the program has ended.
        if self._how != UNDONE and own is not None and not own.beat:
            self._records.leave(self._end(self._how))

    def _look(self) -> None:
        try:
            self._round()
        except Exception as error:
            log.debug(f"could not check where the ranks are: {error!r}")

    def _pause(self) -> float:
        return min(PERIOD, max(0.1, self._least / 10))

    def _talks(self) -> float:
        """Seconds between two questions to the store."""
        return max(self._pause(), self._size / LOOKS)

    def _limit(self) -> float:
        """Seconds that are too long: fewer than collectives wait, so that this is said first."""
        # Of a wait in a group with a short limit nothing is said, and it is none for waits in the others.
        known = [timeouts.shortest(group) for group in internals.groups() if not calls.limits_itself(group)]
        self._least = min([self._hang, *(PART * each for each in known if each)])
        return self._least

    def _round(self) -> None:
        if self._keeper is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            # Early: once it is stopped, nothing can be asked.
            self._keeper = self._records.of(0)
        since, alarm = self._tracker.look(), self._alarm
        if alarm is not None and since < alarm.since:
            # A collective has begun since the alarm.
            if alarm.is_ours and alarm.found:
                waited = alarm.since + System.monotonic() - alarm.at
                log.on_every_rank(f"the waiting ranks continue after {waited:.0f} s")
            alarm = self._alarm = None
        limit = self._limit() if since else self._least
        often = self._talks() if since >= limit / 2 else max(limit / 4, self._talks())
        if alarm is not None and alarm.told is None:
            often = min(self._talks(), 0.5 + self._size / LOOKS)
        if not self._is_lost and System.monotonic() - self._asked >= often:
            self._asked = System.monotonic()
            self._talk(limit)
        alarm, found = self._alarm, self._alarm and self._alarm.found
        due = alarm is not None and self._exit is not None and System.monotonic() - alarm.told_at >= self._exit
        if due and found and found.may_end:
            cause = f"ranks wait: {found.text}"
            log.error("DDPFIX_HANG_EXIT has passed: ddpfix ends this process")
            error_file.write_text(cause, cause)
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(1)

    def _talk(self, limit: float) -> None:
        # Rank 0 mostly keeps the store: no answer can be expected while it is stopped.
        if self._keeper is not None and processes.state_of(self._keeper) == processes.STOPPED:
            self._say_alone(limit, f"rank 0, which keeps the store, {processes.in_words(processes.STOPPED)}")
            return
        try:
            number = self._records.alarm()
            if number > self._number:
                position = self._tracker.position()
                self._number, self._alarm = number, Alarm(number, position.since)
                self._records.sign(number, position)
            elif self._alarm is not None and self._alarm.told is None:
                self._follow(self._alarm, limit)
            elif self._suspects(limit):
                self._raised = System.monotonic()
                self._records.raise_alarm(self._number)
        except Exception as error:
            # Without the store nobody is left to compare with.
            log.debug(f"the ranks cannot be compared: {error!r}")
            self._say_alone(limit, f"the store does not answer ({type(error).__name__})")

    def _suspects(self, limit: float) -> bool:
        """Return whether this rank has waited for others for too long, and this has not been said yet."""
        said = self._alarm is not None and self._alarm.found is not None
        if said or self._tracker.still() < limit or System.monotonic() - self._raised < limit / 2:
            return False
        return self._tracker.may_wait()

    def _follow(self, alarm: Alarm, limit: float) -> None:
        """Wait for what is found, or find it."""
        alarm.told = self._records.told(alarm.number)
        if alarm.told is None:
            if not self._judges(alarm, limit):
                return
            there = self._records.positions(alarm.number)
            found = judge(there, self._absent(there), limit)
            alarm.told, alarm.is_ours = HangReport(found, self._folder or _new_folder() if found else ""), True
            self._records.report(alarm.number, alarm.told)
        alarm.told_at = System.monotonic()
        if alarm.found is not None:
            is_written = write_stacks(alarm.told.folder, self._rank, alarm.found.text)
            if alarm.is_ours:
                self._say(alarm.found, alarm.told.folder, is_written)

    def _judges(self, alarm: Alarm, limit: float) -> bool:
        """Return whether this rank is to judge, and every rank that can has told where it is."""
        waited = System.monotonic() - alarm.at
        if self._records.signed(alarm.number) < self._size:
            if waited < 2 * self._talks() + min(1.0, limit / 4):
                return False
            if waited < limit / 4 + 2 * self._talks():
                there = self._records.positions(alarm.number) if self._records.lowest(alarm.number) else {}
                # It may be known why ranks do not answer.
                if not there or any(each.how == SILENT for each in self._absent(there)):
                    return False
        return self._records.lowest(alarm.number) and self._records.judges(alarm.number)

    def _absent(self, there: Dict[int, Position]) -> List[SilentRank]:
        found: List[SilentRank] = []
        for rank in (rank for rank in range(self._size) if rank not in there):
            who = self._records.of(rank)
            if who is None:
                found.append(SilentRank(rank, SILENT))
            elif who.end is not None and who.end.how != UNDONE:
                found.append(SilentRank(rank, LEFT, end=who.end))
            else:
                how = _ABSENT.get(processes.state_of(who), SILENT)
                hint = processes.how(who.pid) if how == GONE else ""
                found.append(SilentRank(rank, how, f"process {who.pid} on {who.host}", hint))
        return found

    def _say(self, found: Finding, folder: str, is_written: bool) -> None:
        then = "The job goes on waiting"
        if self._exit is not None and found.may_end:
            then = f"The job ends in {self._exit:g} s (DDPFIX_HANG_EXIT)"
        where = f"Python stacks of each rank: {folder}" if is_written else "No Python stacks could be written"
        end = "" if found.text.endswith("?") else "."
        log.error(f"ranks wait: {found.text}{end}\n{where}. {then}", found.data())

    def _say_alone(self, limit: float, why: str) -> None:
        """Say where this rank is, once: what the others do cannot be known."""
        if self._suspects(limit):
            self._is_lost = True
            found, folder = sentences.describe_alone(self._tracker.position(), why), self._folder or _new_folder()
            self._say(found, folder, write_stacks(folder, self._rank, found.text))


def _new_folder() -> str:
    """Return a folder for the stacks of one hang; ranks share its name."""
    return os.path.join(tempfile.gettempdir(), f"ddpfix-hang-{time.strftime('%Y%m%d-%H%M%S')}-{System.pid()}")


def write_stacks(where: str, rank: int, text: str) -> bool:
    """Add this process's stacks to ``hang-rank-N.txt`` in a folder, made if missing; return whether it was possible."""
    try:
        os.makedirs(where, exist_ok=True)
        with System.open(os.path.join(where, f"hang-rank-{rank}.txt"), "a", encoding="utf-8") as file:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"{when} rank {rank}, process {System.pid()} on {System.host()}: {text}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
            with contextlib.suppress(OSError):
                file.write("\n")
    except (OSError, ValueError) as error:
        log.debug(f"could not write stacks to {where}: {error!r}")
        return False
    return True
