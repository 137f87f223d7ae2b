"""A rank asks all ranks of its group to do something from a given place on, while they wait for it in a collective.

The others cannot be in a collective of ddpfix then. A thread of each rank reads the proposal and says so; once all
have, the rank that asks decides, and only then takes part in the collective. So whoever leaves the collective knows of
the proposal and finds the decision in the store, and all ranks act alike. If a rank does not read it in time, the
decision is that nobody acts.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, Optional, Sequence

from ddpfix.exchange.keys import (
    decide,
    decision,
    default_store,
    delete,
    has,
    job,
    look_until,
    passing_store,
    pauses,
    put,
)
from ddpfix.system import System

# Seconds between two looks at the store.
_PAUSE = (0.01, 0.1)
# Seconds for which a decision is looked for that has been made already.
_SOON = 10.0
# The reader of this rank, where it has one.
_READERS: List[Reader] = []


class Reader:
    """Reads the proposals of all ranks, in a thread of one rank."""

    def __init__(self, period: float) -> None:
        self.period, self._read = period, 0
        # What is asked -> called with the place from which on all ranks are to do it.
        self.listeners: Dict[str, Callable[[int], None]] = {}
        _READERS[:] = [self]

    def look(self, part: Any) -> None:
        """Read what is new in this part of the store."""
        while self._read < part.add("proposals", 0) and has(part, f"proposal/{self._read + 1}"):
            self._read += 1
            topic, place = System.loads(part.get(f"proposal/{self._read}"))
            listener = self.listeners.get(topic)
            if listener is not None:
                listener(place)
                part.add(f"proposal/{self._read}/read", 1)

    def end(self) -> None:
        if self in _READERS:
            _READERS.remove(self)


def listen(topic: str, listener: Optional[Callable[[int], None]]) -> None:
    """Call a listener in the thread of the reader when a rank asks this; None: no more."""
    for reader in _READERS:
        if listener is None:
            reader.listeners.pop(topic, None)
        else:
            reader.listeners[topic] = listener


def publish(topic: str, place: int) -> None:
    """Tell all ranks that look for it (:func:`is_told`); the one that tells comes to the collective after that."""
    store = passing_store()
    if store is not None:
        part, key = job(store), f"told/{topic}/{place}"
        put(part, key, "yes")
        # torch's client waits for no answer when it sets a key, so a collective may be faster. What one connection
        # sends is taken in order: with this answer the key is there for all. A store that has ended answers nobody.
        with contextlib.suppress(Exception):
            has(part, key)


def forget(topic: str, place: int) -> None:
    """Take back what this rank has told, when all have looked."""
    store = passing_store()
    if store is not None:
        delete(job(store), [f"told/{topic}/{place}"])


def is_told(topic: str, place: int) -> bool:
    """Return whether a rank has told this, after the collective."""
    store = passing_store()
    # A store that has ended was none that a rank could tell it by.
    with contextlib.suppress(Exception):
        return store is not None and has(job(store), f"told/{topic}/{place}")
    return False


def ask(topic: str, place: int, ranks: Sequence[int], limit: float) -> bool:
    """Ask all ranks; returns whether all of them act. Several ranks may ask the same, and get one answer.

    Args:
        topic: the same on all ranks; each has a listener for it.
        place: from which on they are to act; all ranks come to it after the one that asks.
        limit: seconds to wait, at most; the time of three looks, or ten seconds, where that is less.
    """
    store = default_store()
    if store is None or not _READERS:
        return False
    part = job(store)
    number = part.add("proposals", 1)
    put(part, f"proposal/{number}", System.json([topic, place]))
    last, size = min(limit, max(10.0, 3 * _READERS[0].period)), len(ranks)
    all_read = look_until(
        lambda: part.add(f"proposal/{number}/read", 0) >= size, lambda waited: waited > last, pauses(*_PAUSE, size)
    )
    return decide(part, _answer(topic, place), all_read)


def answer(topic: str, place: int) -> bool:
    """Return what was decided about a proposal, after the collective; RuntimeError: nothing was, ranks might differ."""
    store = default_store()
    with contextlib.suppress(Exception):
        part, key = job(store), _answer(topic, place)
        if look_until(lambda: decision(part, key) is not None, lambda waited: waited > _SOON, _PAUSE):
            return bool(decision(part, key))
    raise RuntimeError(
        "ddpfix: the process group's store does not answer, so this rank cannot tell whether the others exchange their"
        " unused parameters. The process that hosts the store has exited or is unreachable."
    )


def _answer(topic: str, place: int) -> str:
    return f"answer/{topic}/{place}"
