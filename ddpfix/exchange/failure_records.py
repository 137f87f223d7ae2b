"""What ranks leave in the process group's store about their end: the cause, who has ended how, and signs of life."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from functools import lru_cache
from typing import Any, List, NamedTuple, Optional, Sequence

from ddpfix.exchange import first_failure
from ddpfix.exchange.connection import Connection
from ddpfix.exchange.keys import has, put
from ddpfix.system import System

# Ends that are kept: whoever comes later has mostly failed because of these.
_KEPT = 4


class End(NamedTuple):
    """How a rank has ended, and after how many training forwards, if its program came to its end.

    Attributes:
        work: what it had done (:class:`ddpfix.rules.facts.TrainingProgress`), if it has said so.
        called: the collectives that its program has called (:class:`ddpfix.rules.facts.Called`), likewise.
    """

    rank: int
    text: str
    step: Optional[int] = None
    work: Sequence[Any] = ()
    called: Sequence[Any] = ()


class Life(NamedTuple):
    """A sign of life, counted by ``beat``; ``space`` is where the number of the process means something."""

    host: str
    space: str
    pid: int
    step: Optional[int]
    beat: int


class Who(NamedTuple):
    """The process of a rank; ``space`` is where the number of the process means something."""

    host: str
    space: str
    pid: int


class FailureRecords:
    """One rank's view of it."""

    def __init__(self, connection: Connection, rank: int) -> None:
        self._store = connection.store
        self._rank, self._beats = rank, 0
        self._ends: List[Optional[End]] = [None] * _KEPT

    def claim(self, text: str) -> bool:
        """Leave the cause; returns whether this rank is the first to do so."""
        return first_failure.claim_in(self._store(), self._rank, text)

    def cause(self) -> Optional[str]:
        """Return the cause that another rank, the first that failed, has left."""
        return first_failure.cause_in(self._store(), self._rank)

    def acknowledge(self) -> None:
        """Tell a rank that has failed that this one knows the cause."""
        self._store().add("seen", 1)

    def acknowledged(self) -> int:
        """Return how many ranks know the cause."""
        return int(self._store().add("seen", 0))

    def says_first(self, text: str) -> bool:
        """Return whether no other rank prints this text into the same stderr: the ranks of a node mostly share one."""
        where = _stream()
        key = hashlib.sha1(f"{where} {text}".encode()).hexdigest()[:16]
        own = str(self._rank)
        return not where or bytes(self._store().compare_set(f"said/{key}", "", own)).decode() == own

    def leave(self, end: End) -> None:
        """Tell that this rank has ended, and how."""
        store = self._store()
        # A rank that has said so is not silent.
        put(store, f"life/{self._rank}", "null")
        number = int(store.add("ends", 1))
        if number <= _KEPT:
            put(store, f"end/{number}", System.json(end))

    def ends(self) -> List[End]:
        """Return the ranks that have ended first, this one left out; one look as long as there is none."""
        store = self._store()
        for number in range(min(_KEPT, int(store.add("ends", 0)))):
            if self._ends[number] is None and has(store, f"end/{number + 1}"):
                rank, text, step, work, called = System.loads(store.get(f"end/{number + 1}"))
                self._ends[number] = End(rank, text, step, tuple(work), tuple(called))
        return [end for end in self._ends if end is not None and end.rank != self._rank]

    def fall_silent(self) -> None:
        """Give no sign of life any more, and be taken neither for a rank that was killed nor for one that has ended."""
        put(self._store(), f"life/{self._rank}", "null")

    def number_of_ends(self) -> int:
        """Return how many ranks have said that they ended."""
        return int(self._store().add("ends", 0))

    def beat(self, step: Optional[int]) -> None:
        self._beats += 1
        life = System.json(Life(System.host(), space(), System.pid(), step, self._beats))
        if self._beats == 1:
            put(self._store(), f"life/{self._rank}", life)
        else:
            self._store().set(f"life/{self._rank}", life)

    def life(self, rank: int) -> Optional[Life]:
        """Return the last sign of life of a rank; None if it gave none, or has ended in order."""
        store = self._store()
        if not has(store, f"life/{rank}"):
            return None
        found = System.loads(store.get(f"life/{rank}"))
        return None if found is None else Life(*found)


def _stream() -> str:
    """Return what tells this process's stderr from that of other ranks: its file and its machine; "" if not known."""
    with contextlib.suppress(Exception):
        status = os.fstat(sys.stderr.fileno())
        return f"{System.host()} {status.st_dev} {status.st_ino}"
    return ""


@lru_cache(maxsize=None)
def space() -> str:
    """Return the space of this process's number: a machine since its start, and a container on it."""
    with contextlib.suppress(OSError), System.open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""
