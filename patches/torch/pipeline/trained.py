"""How many training forwards this process began whose gradients are averaged over all ranks."""

from __future__ import annotations

import weakref
from typing import Any, Callable, List

from ..internals.wrapper import joins
from . import ddp


class Forwards:
    """The forwards of all models.

    Attributes:
        begun: the number of them: each is one on all ranks.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._due: List[Callable[[], None]] = []

    def at_next(self, due: Callable[[], None]) -> None:
        """Call this when the next one begins."""
        self._due.append(due)

    def forget(self) -> None:
        """Nothing is due any more (undo)."""
        self._due.clear()

    def begin(self) -> None:
        """One begins."""
        while self._due:
            self._due.pop()()
        self.begun += 1


class Counter:
    """Counts those of one model.

    Args:
        wrapper: the model under DDP.
        forwards: the forwards of all models.
    """

    def __init__(self, wrapper: Any, forwards: Forwards) -> None:
        self._wrapper, self._forwards = weakref.ref(wrapper), forwards

    def begin(self) -> None:
        """A forward with gradients begins."""
        wrapper = self._wrapper()
        if wrapper is None or not (ddp.trains(wrapper) and wrapper.require_backward_grad_sync):
            return
        if joins(wrapper):
            # The program has ranks with different numbers of batches, and does something about it.
            return
        self._forwards.begin()
