"""What is known of a model whose error is explained."""

from __future__ import annotations

from typing import Protocol, Tuple

from ..pipeline import ddp
from .evidence import Evidence


class Case(Protocol):
    """What the explanation of an error reads, see :class:`.stage.Watched`.

    Attributes:
        wrapped_by: the modules that have wrapped it, the outermost first.
        number: how many errors were explained: what ranks compare has a name of its own each time.
        is_inside: whether backwards are made while the wrapped module's own forward runs.
    """

    model: ddp.Wrapped
    evidence: Evidence
    wrapped_by: Tuple[str, ...]
    number: int
    is_inside: bool
