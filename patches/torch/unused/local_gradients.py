"""The first step of a model without the flag, in which the number of backwards is not known yet.

If no backward has reached some output, each rank keeps its own gradients beside their mean. They replace the mean when
another backward follows, so that the sum is rounded as if there had been one reduction.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, List, Optional, Set

from ddpfix import devices

from ..internals.tensors import Prehook
from .backward_count import Gradients
from .states import Reduction


class LocalGradients:
    """Keeps the gradients of a rank, and the streams in which they came to the outputs, until the next step begins."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = weakref.ref(reduction)
        self.streams: Set[Any] = set()
        self._outputs: List[weakref.ref[Output]] = []
        # On the CPU, because it may need as much memory as all gradients.
        self._own: List[Any] = []
        self._mean: Optional[Gradients] = None

    @property
    def _parameters(self) -> Any:
        return self._reduction().parameters  # type: ignore[union-attr]

    def output(self) -> Output:
        """Return a hook for one output."""
        made = Output(self._reduction(), self.streams)
        self._outputs.append(weakref.ref(made))
        return made

    def keep(self, reductions: int) -> None:
        """Copy the gradients of this rank, which are about to be averaged, after this number of reductions."""
        if reductions and not self._own:
            return
        outputs = [reference() for reference in self._outputs]
        if any(output is not None and not output.reached for output in outputs):
            gradients = [parameter.grad for parameter in self._parameters]
            self._own = [None if each is None else each.detach().to("cpu", copy=True) for each in gradients]

    def reduced(self) -> None:
        """Record the mean, after the gradients were averaged."""
        if self._own:
            self._mean = Gradients(self._parameters)

    def used(self) -> bool:
        """Return whether the mean was changed (clipped, say), so that it must stay."""
        return self._mean is not None and self._mean.changed()

    def may_restore(self) -> bool:
        return bool(self._own) and not self.used()

    def restore(self) -> None:
        """Put this rank's own gradients back, because another backward begins."""
        for parameter, own in zip(self._parameters, self._own):
            if own is None:
                parameter.grad = None
            else:
                parameter.grad.detach().copy_(own)

    def ended(self) -> None:
        """Forget everything, because the next reduced step begins."""
        if self._outputs or self._own:
            self._outputs, self._own, self._mean = [], [], None


class Output:
    """A hook on one output. It lives as long as the graph behind the output does."""

    __slots__ = ("__weakref__", "_reduction", "_streams", "reached")

    def __init__(self, reduction: Any, streams: Set[Any]) -> None:
        self._reduction, self._streams, self.reached = reduction, streams, False

    def __call__(self, gradients: Any) -> None:
        self.reached = True
        # The engine runs a node, and this hook before it, in the stream of its forward.
        self._streams.update(devices.current_stream(each.device) for each in gradients if each is not None)
        self._reduction.output_reached(gradients)


class Outputs:
    """Puts hooks on the nodes behind outputs: on the tensors themselves they would be visible, as when one is saved."""

    def __init__(self, reached: Callable[[Any], None]) -> None:
        self._reached, self._hook = reached, Prehook(reached)

    def hook(self, outputs: Iterable[Any], first: Optional[LocalGradients]) -> None:
        """Put a hook on each; in its first step the model notes which outputs a gradient has reached."""
        for tensor in outputs:
            if first is not None:
                tensor.grad_fn.register_prehook(first.output())
            elif tensor.output_nr == 0:
                self._hook.put(tensor.grad_fn)
            else:
                tensor.grad_fn.register_prehook(self._reached)
