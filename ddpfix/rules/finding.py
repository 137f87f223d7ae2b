"""What the facts of ranks mean, as every message prints it."""

from __future__ import annotations

from typing import NamedTuple, Tuple


class Finding(NamedTuple):
    """One thing that happened, with its cause.

    Attributes:
        kind: which one of its rule's kinds.
        ranks: the ranks that it concerns; () for all.
        where: the modules, or the line.
        cause: a sentence.
        advice: what to do; "" where the rule's caller knows that.
    """

    kind: str
    ranks: Tuple[int, ...]
    where: str
    cause: str
    advice: str = ""
