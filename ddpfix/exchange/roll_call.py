"""Ranks check through the process group's store that all of them do the same thing now, or come to one place.

A roll call: a rank that does something else would wait for the others in a collective, or, worse, its collective would
be matched with another one of theirs. A step that is like the one before needs no roll call.

Whether all ranks of a group come to one place is asked once. A rank that waits in vain refuses for all of them, also
for those that come later: all ranks get the same answer.

On how many ranks the same was found is asked where some may be gone, so nobody waits for long.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any, NamedTuple, Optional, Sequence

from ddpfix.exchange.keys import (
    count,
    decide,
    decision,
    default_store,
    delete,
    group_store,
    keys,
    look_until,
    passing_store,
    pauses,
)
from ddpfix.groups import timeouts
from ddpfix.unlisted_thread import answer

# Seconds between two looks at the store: short at first, because ranks mostly come together.
_PAUSE = (0.0002, 0.05)
# Ranks have just been in a collective together, so one that does not come within this time does something else.
LIMIT = 300.0
# Seconds to wait for ranks of which some may be gone, and for a store that does not answer.
SHORT = 2.0
_STORE_LIMIT = 1.0
_SUM, _ALL, _READ = "sum", "all", "read"


_LATE = "waiting for the other ranks to call backward again, as this one does"
_WHY = "Going on could average gradients of different steps."


class RollCallError(RuntimeError):
    """The ranks of a group do not do the same thing. The message says what this rank does."""


class RollCall:
    """The roll calls of one group, whose members make them in the same order.

    Args:
        name: the same on all ranks, and not used for anything else.
        limit: seconds after which a rank that has not come is considered to do something else.
    """

    def __init__(self, name: str, ranks: Sequence[int], limit: float = LIMIT) -> None:
        self._name, self._size, self._limit = name, len(ranks), limit
        self._calls = 0

    def same(self, word: str) -> bool:
        """Return whether all ranks gave the same word, as far as they can be asked; RollCallError: one is too late."""
        store = passing_store()
        if store is None or self._size == 1:
            return True
        self._calls += 1
        own = keys(store, f"roll/{self._name}/{self._calls}")
        number = int(hashlib.sha1(word.encode()).hexdigest()[:10], 16)
        # All words are the same where the sum of their numbers says so: one key, however many words there are.
        own.add(_SUM, number)
        own.add(_ALL, 1)
        limit, pause = self._limit, pauses(*_PAUSE, self._size)
        if not look_until(lambda: own.add(_ALL, 0) >= self._size, lambda waited: waited > limit, pause, 10, _LATE):
            raise RollCallError(
                f"ddpfix: only some ranks have reached this point ({word}; waited {limit:g} s for the others). {_WHY}"
            )
        same = bool(own.add(_SUM, 0) == number * self._size)
        if own.add(_READ, 1) == self._size:
            delete(own, [_SUM, _ALL, _READ])
        return same


def limit_of(group: Any, most: float = LIMIT) -> float:
    """Seconds to wait in a group: less than its collectives do, so that the cause is reported before they give up."""
    limit = timeouts.shortest(group)
    return most if limit is None else min(most, limit / 2)


def name_of_next(group: str, kind: str) -> str:
    """Return a name for the next thing of a kind, which the members of a group count in one order, the same on all."""
    return f"{group}/{kind}/{count(group_store(), f'{group}/{kind}')}"


def all_come(name: str, ranks: Sequence[int], limit: float) -> bool:
    """Return whether all ranks come to a place, which each asks once; without a store nobody has come."""
    store = default_store()
    if store is None or len(ranks) == 1:
        return len(ranks) == 1
    own, pause = keys(store, f"consent/{name}"), pauses(*_PAUSE, len(ranks))
    if own.add("come", 1) == len(ranks):
        return decide(own, "answer", True)
    look_until(lambda: decision(own, "answer") is not None, lambda waited: waited > limit, pause)
    return decide(own, "answer", False)


def refuse(name: str, ranks: Sequence[int]) -> None:
    """Answer no for all ranks, in place of :func:`all_come`: this one cannot."""
    store = default_store()
    if store is not None:
        decide(keys(store, f"consent/{name}"), "answer", False)


class Found(NamedTuple):
    """How many ranks of a group have found the same as this one within the limit, and how many there are."""

    same: int
    size: int


def compare(name: str, size: int, text: str, limit: float = SHORT) -> Optional[Found]:
    """Tell the other ranks what this one has found, and wait for what they have found.

    Args:
        name: of what is compared; the same on all ranks, and used once.
        size: of the group.

    Returns:
        None where there is no store, or it does not answer.
    """
    store = default_store()
    if store is None or size == 1:
        return None
    same = f"same/{hashlib.sha1(text.encode()).hexdigest()}"

    def ask() -> Found:
        own = keys(store, f"comparison/{name}")
        own.add(same, 1)
        own.add("all", 1)
        look_until(lambda: own.add("all", 0) >= size, lambda waited: waited > limit, pauses(0.002, 0.05, size))
        found, answered = Found(own.add(same, 0), size), own.add("all", 0)
        with contextlib.suppress(Exception):
            # The server of the store may be in this process, which is about to end: the others are to have read.
            own.add("read", 1)
            look_until(lambda: own.add("read", 0) >= answered, lambda waited: waited > _STORE_LIMIT / 2, (0.002, 0.05))
        return found

    return answer(ask, limit + _STORE_LIMIT, None)
