"""The traffic of a model under DDP, counted where its gradient buckets are communicated."""

from __future__ import annotations

import weakref
from typing import Any


class Traffic:
    """Gradient buckets on this rank, since the model was wrapped.

    Attributes:
        sent: bytes that were communicated.
        saved: bytes that were not, because no rank used any parameter of their bucket.
        buckets: how many buckets were communicated.
        kept: how many were not.
    """

    def __init__(self) -> None:
        self.sent, self.saved, self.buckets, self.kept = 0, 0, 0, 0

    def __repr__(self) -> str:
        return f"Traffic(sent={self.sent}, saved={self.saved}, buckets={self.buckets}, kept={self.kept})"


COUNTED: weakref.WeakKeyDictionary[Any, Traffic] = weakref.WeakKeyDictionary()


def traffic(wrapper: Any) -> Traffic:
    """Return the traffic of a model that skips layers since it was wrapped.

    Args:
        wrapper: the ``DistributedDataParallel`` module.

    Raises:
        LookupError: its buckets are not looked at: it skips no layers on all ranks alike, or so few that it does not
            pay, a communication hook of the user's own may need them all, or it has not been trained yet.
    """
    found = COUNTED.get(wrapper)
    if found is None:
        raise LookupError("the gradient buckets of this model are not observed")
    return found
