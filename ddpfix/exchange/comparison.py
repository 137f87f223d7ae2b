"""What ranks have found, compared through the process group's store: some may be gone, so nobody waits for long.

A rank counts itself in, and leaves what it has found unless another one has found the same. So what is read does not
grow with the number of ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any, List, NamedTuple, Optional, Sequence

from ddpfix.background import answer
from ddpfix.exchange.keys import default_store, has, keys, look_until, put
from ddpfix.system import System

# Seconds to wait for the other ranks, and for a store that does not answer.
LIMIT = 2.0
_STORE_LIMIT = 1.0
# Seconds between two looks at the store: short at first, longer where many ranks look.
_PAUSE = (0.002, 0.05)
_BUSY = 1e-4
# Different findings that are read.
_KEPT = 4
# Ranks that are looked at one by one for those that have said nothing.
_BY_NAME = 64


class Answer(NamedTuple):
    """What some ranks have found: one of them, and how many of them there are."""

    rank: int
    text: str
    ranks: int


class Found(NamedTuple):
    """What the ranks of a group have found.

    Attributes:
        findings: the different ones, four at most, this rank's own among them.
        silent: the ranks that have said nothing within the limit; None where there are too many ranks to look at each.
    """

    findings: List[Answer]
    silent: Optional[List[int]]
    answered: int
    size: int


def compare(name: str, rank: int, ranks: Sequence[int], text: str, limit: float = LIMIT) -> Optional[Found]:
    """Tell the other ranks what this one has found, and wait for what they have found.

    Args:
        name: of what is compared; the same on all ranks, and used once.

    Returns:
        None where there is no store, or it does not answer.
    """
    store = default_store()
    if store is None or len(ranks) == 1:
        return None
    return answer(
        lambda: _compare(keys(store, f"comparison/{name}"), rank, ranks, text, limit), limit + _STORE_LIMIT, None
    )


def _compare(own: Any, rank: int, ranks: Sequence[int], text: str, limit: float) -> Found:
    digest = hashlib.sha1(text.encode()).hexdigest()
    if own.add(f"same/{digest}", 1) == 1:
        number = own.add("different", 1)
        if number <= _KEPT:
            put(own, f"finding/{number}", System.json([rank, text]))
    put(own, f"rank/{rank}", "here")
    own.add("all", 1)
    pauses = (_PAUSE[0], _PAUSE[1] + _BUSY * len(ranks))
    look_until(lambda: own.add("all", 0) >= len(ranks), lambda waited: waited > limit, pauses)
    findings = [_read(own, number + 1) for number in range(min(_KEPT, own.add("different", 0)))]
    silent = [each for each in ranks if not has(own, f"rank/{each}")] if len(ranks) <= _BY_NAME else None
    answered = own.add("all", 0)
    _let_read(own, answered)
    return Found([each for each in findings if each is not None], silent, answered, len(ranks))


def _let_read(own: Any, answered: int) -> None:
    """Wait for the others to have read: the server of the store may be in this process, which is about to end."""
    with contextlib.suppress(Exception):
        own.add("read", 1)
        look_until(lambda: own.add("read", 0) >= answered, lambda waited: waited > _STORE_LIMIT / 2, _PAUSE)


def _read(own: Any, number: int) -> Optional[Answer]:
    if not has(own, f"finding/{number}"):
        return None
    rank, text = System.loads(own.get(f"finding/{number}"))
    digest = hashlib.sha1(text.encode()).hexdigest()
    return Answer(rank, text, own.add(f"same/{digest}", 0))
