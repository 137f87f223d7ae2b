"""Who takes part in a job, and who has left it and how: one record of each rank in the process group's store."""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from typing import Dict, Iterable, List, NamedTuple, Optional

from ddpfix.exchange.connection import Connection
from ddpfix.exchange.keys import has, put, put_first
from ddpfix.rules.facts import UNDONE, End
from ddpfix.system import System

# Ends whose order is kept: whoever comes later has mostly failed because of these.
_KEPT = 4


class Present(NamedTuple):
    """A rank.

    Attributes:
        space: where the number of the process means something.
        step: the training forwards that it had begun at its last sign of life.
        beat: how many of these it has given; 0 where none is to be expected.
        end: how it has left; None as long as it takes part.
    """

    host: str
    space: str
    pid: int
    step: Optional[int] = None
    beat: int = 0
    end: Optional[End] = None


def here() -> Present:
    """Return this process, before its first sign of life."""
    return Present(System.host(), space(), System.pid())


class Presence:
    """One rank's view of it."""

    def __init__(self, connection: Connection, rank: int) -> None:
        self._store, self._rank, self._own = connection.store, rank, here()

    def enter(self) -> None:
        """Take part without signs of life, unless another thread of this rank gives some."""
        put_first(self._store(), f"rank/{self._rank}", System.json(self._own))

    def beat(self, step: Optional[int]) -> None:
        """Give a sign of life."""
        self._own = self._own._replace(step=step, beat=self._own.beat + 1)
        if self._own.beat == 1:
            put(self._store(), f"rank/{self._rank}", System.json(self._own))
        else:
            self._store().set(f"rank/{self._rank}", System.json(self._own))

    def leave(self, end: End) -> None:
        """Tell that this rank takes part no more: it is neither silent nor gone without a word."""
        store = self._store()
        put(store, f"rank/{self._rank}", System.json(self._own._replace(end=end)))
        # A rank on which ddpfix is undone trains on.
        number = int(store.add("ends", 1)) if end.how != UNDONE else _KEPT + 1
        if number <= _KEPT:
            put(store, f"end/{number}", str(self._rank))

    def of(self, rank: int) -> Optional[Present]:
        """Return what is known of a rank; None for one that has never taken part."""
        store = self._store()
        if not has(store, f"rank/{rank}"):
            return None
        *known, end = System.loads(store.get(f"rank/{rank}"))
        return Present(*known)._replace(end=None if end is None else End.load(end))

    def alive(self, ranks: Iterable[int]) -> Dict[int, Present]:
        """Return those of some ranks that take part."""
        found = {rank: self.of(rank) for rank in ranks}
        return {rank: each for rank, each in found.items() if each is not None and each.end is None}

    def ends(self) -> List[End]:
        """Return how the ranks have left that did so first, this one left out."""
        store, found = self._store(), []
        for number in range(1, min(_KEPT, self.number_of_ends()) + 1):
            there = self.of(int(store.get(f"end/{number}"))) if has(store, f"end/{number}") else None
            if there is not None and there.end is not None and there.end.rank != self._rank:
                found.append(there.end)
        return found

    def number_of_ends(self) -> int:
        """Return how many ranks have left."""
        return int(self._store().add("ends", 0))


@lru_cache(maxsize=None)
def space() -> str:
    """Return the space of this process's number: a machine since its start, and a container on it."""
    with contextlib.suppress(OSError), System.open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""
