"""On how many ranks of a group the same was found: some may be gone, so nobody waits for long.

A rank counts itself in, and what it has found. So what is read does not grow with the number of ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import NamedTuple, Optional

from ddpfix.background import answer
from ddpfix.exchange.keys import default_store, keys, look_until

# Seconds to wait for the other ranks, and for a store that does not answer.
LIMIT = 2.0
_STORE_LIMIT = 1.0
# Seconds between two looks at the store: short at first, longer where many ranks look.
_PAUSE = (0.002, 0.05)
_BUSY = 1e-4


class Found(NamedTuple):
    """How many ranks of a group have found the same as this one within the limit, and how many there are."""

    same: int
    size: int


def compare(name: str, size: int, text: str, limit: float = LIMIT) -> Optional[Found]:
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
        pauses = (_PAUSE[0], _PAUSE[1] + _BUSY * size)
        look_until(lambda: own.add("all", 0) >= size, lambda waited: waited > limit, pauses)
        found, answered = Found(own.add(same, 0), size), own.add("all", 0)
        with contextlib.suppress(Exception):
            # The server of the store may be in this process, which is about to end: the others are to have read.
            own.add("read", 1)
            look_until(lambda: own.add("read", 0) >= answered, lambda waited: waited > _STORE_LIMIT / 2, _PAUSE)
        return found

    return answer(ask, limit + _STORE_LIMIT, None)
