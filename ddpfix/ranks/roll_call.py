"""A roll call: ranks check through the process group's store that all of them do the same thing now.

A rank that does something else would wait for the others in a collective, or, worse, its collective would be matched
with another one of theirs. A step that is like the one before needs no roll call.
"""

from __future__ import annotations

import hashlib
from typing import Any, Sequence

from ddpfix.ranks import limits
from ddpfix.ranks.store import count, default_store, keys, look_until, pauses

# Seconds between two looks at the store: short at first, because ranks mostly come together.
_PAUSE = (0.0002, 0.05)
# Ranks have just been in a collective together, so one that does not come within this time does something else.
LIMIT = 300.0
_ALL = "all"
_LATE = "waiting for the other ranks to call backward again as this one does"


class RollCallError(RuntimeError):
    """The ranks of a group do not do the same thing. The message says what this rank does."""


class RollCall:
    """The roll calls of one group, whose members make them in the same order.

    Args:
        name: the same on all ranks, and not used for anything else.
        ranks: the global ranks of the group.
        limit: seconds after which a rank that has not come is considered to do something else.
    """

    def __init__(self, name: str, ranks: Sequence[int], limit: float = LIMIT) -> None:
        self._name, self._size, self._limit = name, len(ranks), limit
        self._calls = 0

    def same(self, word: str) -> bool:
        """Wait for all ranks; returns whether all of them gave the same word.

        Raises:
            RollCallError: a rank did not come within the limit.
        """
        store = default_store()
        if store is None or self._size == 1:
            # Without a store (MPI) ranks cannot compare.
            return True
        self._calls += 1
        own, expected = keys(store, f"roll/{self._name}"), self._calls * self._size
        own.add(f"{self._calls}/{word}", 1)
        own.add(_ALL, 1)
        pause = pauses(*_PAUSE, self._size)
        if not look_until(lambda: own.add(_ALL, 0) >= expected, lambda waited: waited > self._limit, pause, 10, _LATE):
            raise RollCallError(
                f"ddpfix: this rank alone, or not every rank, does this: {word}. Gradients that only some ranks reduce"
                f" would be mixed up with those of another step. (Waited {self._limit:g} s for the others.)"
            )
        return bool(own.add(f"{self._calls}/{word}", 0) == self._size)


def limit_of(group: Any, most: float = LIMIT) -> float:
    """Seconds to wait in a group: less than its collectives do, so that the cause is reported before they give up.

    Args:
        group: a process group; None is the default one.
        most: the largest value.
    """
    limit = limits.shortest(group)
    return most if limit is None else min(most, limit / 2)


def name_of_next(ranks: Sequence[int], kind: str) -> str:
    """A name for the next thing of a kind that the members of a group have in the same order, the same on all ranks.

    Args:
        ranks: the global ranks of the group.
        kind: things of another kind are counted apart.
    """
    group = hashlib.sha1(",".join(map(str, ranks)).encode()).hexdigest()[:12]
    return f"{group}/{kind}/{count(default_store(), f'{group}/{kind}')}"
