"""A second backward of a step, in a model whose reentrant checkpoints were made non-reentrant under the flag.

Plain torch ends such a model's first backward with an error. Made non-reentrant it trains; but gradients of a backward
that begins after DDP has ended the reduction of the step would stay on each rank, in silence. That backward raises.
"""

from __future__ import annotations

import weakref
from typing import Any, List

from ..internals import autograd, reducer
from ..pipeline import ddp

PLACE = "second_backward"
SECOND = (
    "ddpfix: a backward of {} has begun after DDP had averaged the gradients of this step, so that what it adds would"
    " stay on this rank. Plain torch ends this program with 'Expected to mark a variable ready only once', because of"
    " its reentrant checkpoints under find_unused_parameters=True. Call backward once, for the sum of the losses; or"
    " leave find_unused_parameters out: then such a backward is averaged as well"
)


class Guard:
    """Follows the backwards of one model.

    Args:
        model: its record.
    """

    def __init__(self, model: ddp.Wrapped) -> None:
        self._wrapper = weakref.ref(model.wrapper)
        self._nodes = autograd.accumulators(model.parameters)
        self._hooks: List[Any] = [node.register_prehook(self._reached) for node in self._nodes]
        self._runs = False
        self.begin()

    def begin(self) -> None:
        """A forward with gradients enabled begins."""
        wrapper = self._wrapper()
        self._is_reduced = wrapper is not None and wrapper.require_backward_grad_sync
        self._has_run = False

    def _reached(self, gradients: Any) -> None:
        """A gradient comes to a parameter."""
        if self._runs:
            return
        wrapper = self._wrapper()
        if self._has_run and wrapper is not None and not reducer.unfinished(wrapper.reducer):
            raise RuntimeError(SECOND.format(type(wrapper.module).__name__))
        self._runs = True
        reducer.at_end_of_backward(self._ended)

    def _ended(self) -> None:
        self._runs, self._has_run = False, self._is_reduced

    def end(self) -> None:
        """Remove the hooks."""
        while self._hooks:
            self._hooks.pop().remove()


GUARD: ddp.Slot[Guard] = ddp.Slot()


def refuse(model: ddp.Wrapped) -> None:
    """Have a second backward of a model's step raise, from the forward on that runs now."""
    if GUARD.of(model) is None:
        model.attach(PLACE, before=GUARD.put(model, Guard(model)).begin)


def forget() -> None:
    """Undo."""
    for model in ddp.known():
        guard = GUARD.clear(model)
        if guard is not None:
            model.detach(PLACE)
            guard.end()
