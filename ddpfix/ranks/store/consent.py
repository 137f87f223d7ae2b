"""Whether all ranks of a group come to one place, asked once through the process group's store.

A rank that waits in vain refuses for all of them, also for those that come later: all ranks get the same answer.
"""

from __future__ import annotations

from typing import Any, Sequence

from ddpfix.ranks.store.keys import default_store, has, keys, look_until, pauses, put

# Seconds between two looks at the store: short at first, because ranks mostly come together.
_PAUSE = (0.0002, 0.05)
# More than there are ranks: what a refusal adds to the count of those that have come.
_REFUSAL = 1 << 32
# Seconds for which the answer is waited for once it is decided.
_SOON = 10.0


def all_come(name: str, ranks: Sequence[int], limit: float) -> bool:
    """Wait for the other ranks at this place; returns whether all of them have come. Without a store nobody has.

    Args:
        name: of the place; the same on all ranks, and each rank asks once.
    """
    store = default_store()
    if store is None or len(ranks) == 1:
        return len(ranks) == 1
    own = keys(store, f"consent/{name}")
    come = own.add("come", 1)
    if come == len(ranks):
        put(own, "answer", "yes")
    elif not _answered(own, limit, len(ranks)):
        _refuse(own, len(ranks))
    # A rank that was to answer may have ended in between.
    return _answered(own, _SOON, len(ranks)) and bytes(own.get("answer")) == b"yes"


def refuse(name: str, ranks: Sequence[int]) -> None:
    """Answer no for all ranks, in place of :func:`all_come`: this one cannot."""
    store = default_store()
    if store is not None:
        _refuse(keys(store, f"consent/{name}"), len(ranks))


def _answered(own: Any, limit: float, size: int) -> bool:
    return look_until(lambda: has(own, "answer"), lambda waited: waited > limit, pauses(*_PAUSE, size))


def _refuse(own: Any, size: int) -> None:
    """Answer no, unless the last rank has come in this moment or another one refuses."""
    if own.add("come", _REFUSAL) - _REFUSAL < size:
        put(own, "answer", "no")
