"""What the ranks of a job leave in its process group's store: who takes part, who has failed and why, where ranks wait.

A job in which collectives begin, and no rank ends, writes no more there than its signs of life.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from functools import lru_cache
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

from ddpfix import log
from ddpfix.exchange.keys import absent, be_lowest, default_store, has, is_first, job, put, put_first, read
from ddpfix.rules.facts import UNDONE, End, Position
from ddpfix.rules.finding import Finding
from ddpfix.system import System

# Ends whose order is kept: whoever comes later has mostly failed because of these.
_KEPT = 4
# How many characters of an error are left for the others.
_LENGTH = 6000


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


class HangReport(NamedTuple):
    """What was found, None where nothing was seen to be wrong, and the folder of the stacks."""

    found: Optional[Finding]
    folder: str


def here() -> Present:
    """Return this process, before its first sign of life."""
    return Present(System.host(), space(), System.pid())


class Records:
    """One rank's view of them; ``store`` gives the keys of the job."""

    def __init__(self, store: Callable[[], Any], rank: int, size: int = 0) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._own = here()

    # Who takes part.

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

    # Who has failed, and why; nobody is ended for it.

    def claim(self, found: Finding) -> bool:
        """Leave the cause; returns whether this rank is the first to do so, also when called again."""
        store = self._store()
        if not is_first(store, "first", self._rank):
            return False
        if not has(store, "cause"):
            put(store, "cause", System.json(found._replace(where=found.where[:_LENGTH])))
        return True

    def cause(self) -> Optional[Finding]:
        """Return the cause that another rank, the first that failed, has left."""
        store = self._store()
        if not has(store, "cause") or bytes(store.get("first")).decode() == str(self._rank):
            return None
        return Finding(*System.loads(store.get("cause")))

    def acknowledge(self) -> None:
        """Tell a rank that has failed that this one knows the cause."""
        self._store().add("seen", 1)

    def acknowledged(self) -> int:
        """Return how many ranks know the cause."""
        return int(self._store().add("seen", 0))

    def says_first(self, text: str) -> bool:
        """Return whether no other rank prints this text into the same stderr: the ranks of a node mostly share one."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            status = os.fstat(sys.stderr.fileno())
            where = f"{System.host()} {status.st_dev} {status.st_ino}"
            key = hashlib.sha1(f"{where} {text}".encode()).hexdigest()[:16]
            return is_first(self._store(), f"said/{key}", self._rank)
        return True

    # Where ranks wait, after an alarm.

    def alarm(self) -> int:
        """Return the number of the last alarm; 0 before the first one."""
        return int(self._store().add("alarm", 0))

    def raise_alarm(self, last: int) -> None:
        """Have all ranks tell where they are, unless another did so after ``last``, the last alarm known here."""
        if is_first(self._store(), f"raised/{last + 1}", self._rank):
            self._store().add("alarm", 1)

    def sign(self, alarm: int, position: Position) -> None:
        put(self._store(), f"sign/{alarm}/{self._rank}", System.json(position))
        be_lowest(self._store(), f"lowest/{alarm}", self._rank)
        self._store().add(f"signed/{alarm}", 1)

    def signed(self, alarm: int) -> int:
        """Return how many ranks have told where they are."""
        return int(self._store().add(f"signed/{alarm}", 0))

    def lowest(self, alarm: int) -> bool:
        """Return whether no rank below this one has told where it is; this one has."""
        return int(self._store().get(f"lowest/{alarm}")) == self._rank

    def positions(self, alarm: int) -> Dict[int, Position]:
        """Return the positions of the ranks."""
        store = self._store()
        names = {f"sign/{alarm}/{rank}": rank for rank in range(self._size)}
        for name in absent(store, list(names)):
            del names[name]
        return {rank: Position.load(System.loads(text)) for rank, text in zip(names.values(), read(store, list(names)))}

    def judges(self, alarm: int) -> bool:
        """Return whether this rank is the one that judges."""
        return is_first(self._store(), f"judge/{alarm}", self._rank)

    def report(self, alarm: int, told: HangReport) -> None:
        """What was found."""
        put(self._store(), f"report/{alarm}", System.json(told))

    def told(self, alarm: int) -> Optional[HangReport]:
        """Return the finding; None as long as no rank has published it."""
        store, key = self._store(), f"report/{alarm}"
        if not has(store, key):
            return None
        found, folder = System.loads(store.get(key))
        return HangReport(None if found is None else Finding(*found), folder)


@lru_cache(maxsize=None)
def space() -> str:
    """Return the space of this process's number: a machine since its start, and a container on it."""
    with contextlib.suppress(OSError), System.open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _of_group() -> Optional[Records]:
    """Return the records on the group's own connection; None without a store."""
    from torch import distributed

    store = default_store()
    return None if store is None else Records(lambda: job(store), distributed.get_rank())


def claim(found: Finding) -> bool:
    """Leave the cause from a thread of the program; without a store every rank is the first."""
    records = _of_group()
    return records is None or records.claim(found)


def cause() -> Optional[Finding]:
    """Return the cause that another rank has left, in a thread of the program; None where there is none."""
    try:
        records = _of_group()
        return None if records is None else records.cause()
    except Exception as error:
        log.debug(f"the store does not answer: {error!r}")
    return None


class PeerFailedError(RuntimeError):
    """This rank ends because another one has failed; the message says which, and why."""

    def __init__(self, cause: Optional[Finding], otherwise: str = "") -> None:
        super().__init__(f"ddpfix: {cause.line if cause else otherwise} (this rank ends because of it)")
