"""How many training forwards this process began whose gradients are averaged over all ranks."""

from __future__ import annotations

import weakref
from typing import Any, Callable, List

_FORWARDS = [0]
# Called at the next such forward.
_DUE: List[Callable[[], None]] = []


def forwards() -> int:
    """The number of them: each is one on all ranks."""
    return _FORWARDS[0]


def at_next(due: Callable[[], None]) -> None:
    """Call this when the next one begins."""
    _DUE.append(due)


def forget() -> None:
    """Nothing is due any more (undo)."""
    _DUE.clear()


class Counter:
    """Counts those of one model.

    Args:
        wrapper: the model under DDP.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = weakref.ref(wrapper)

    def begin(self) -> None:
        """A forward with gradients begins."""
        wrapper = self._wrapper()
        if wrapper is None or not (wrapper.module.training and wrapper.require_backward_grad_sync):
            return
        if getattr(getattr(wrapper, "_join_config", None), "enable", False):
            # The program has ranks with different numbers of batches, and does something about it.
            return
        while _DUE:
            _DUE.pop()()
        _FORWARDS[0] += 1
