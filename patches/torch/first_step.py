"""The first step of a model without the flag, which may have more backwards: nobody knows yet.

If an output is left that no backward has reached, each rank keeps its own gradients beside their mean. They take the
place of the mean when another backward follows, so that its sum is rounded as if there had been one reduction.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, List, Optional

from .several import Gradients

if TYPE_CHECKING:
    from .finalizer import Finalizer


class FirstStep:
    """What a rank keeps until the next step begins.

    Args:
        finalizer: of the model.
    """

    def __init__(self, finalizer: Finalizer) -> None:
        self._finalizer = weakref.ref(finalizer)
        self._outputs: List[weakref.ref[Output]] = []
        # On the CPU: this may be as much again as all gradients.
        self._own: List[Any] = []
        self._mean: Optional[Gradients] = None

    @property
    def _parameters(self) -> Any:
        return self._finalizer().parameters  # type: ignore[union-attr]

    def output(self) -> Output:
        """A hook for one output."""
        made = Output(self._finalizer())
        self._outputs.append(weakref.ref(made))
        return made

    def keep(self, reductions: int) -> None:
        """The gradients of this rank are about to be averaged, after so many reductions."""
        if reductions and not self._own:
            return
        left = [known() for known in self._outputs]
        if any(output is not None and not output.reached for output in left):
            gradients = [parameter.grad for parameter in self._parameters]
            self._own = [None if each is None else each.detach().to("cpu", copy=True) for each in gradients]

    def reduced(self) -> None:
        """They are averaged."""
        if self._own:
            self._mean = Gradients(self._parameters)

    def used(self) -> bool:
        """Whether something was done with the mean (it was clipped, say), which holds."""
        return self._mean is not None and self._mean.changed()

    def may_restore(self) -> bool:
        return bool(self._own) and not self.used()

    def restore(self) -> None:
        """Another backward begins."""
        for parameter, own in zip(self._parameters, self._own):
            if own is None:
                parameter.grad = None
            else:
                parameter.grad.detach().copy_(own)

    def ended(self) -> None:
        """A step begins that is reduced."""
        self._outputs, self._own, self._mean = [], [], None


class Output:
    """A hook on one output. It lives as long as the graph behind the output does."""

    __slots__ = ("__weakref__", "_finalizer", "reached")

    def __init__(self, finalizer: Any) -> None:
        self._finalizer, self.reached = finalizer, False

    def __call__(self, gradients: Any) -> None:
        self.reached = True
        self._finalizer.output_reached(gradients)
