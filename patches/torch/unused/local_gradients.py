"""The first step of a model without the flag, in which the number of backwards is not known yet.

If no backward has reached some output, each rank keeps its own gradients beside their mean. They replace the mean when
another backward follows, so that the sum is rounded as if there had been one reduction.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from ddpfix import devices

from ..internals import autograd, modes
from ..internals.tensors import hooks_sums
from .backward_count import Gradients


class LocalGradients:
    """Keeps the gradients of a rank, and the streams in which they came to the outputs, until the next step begins.

    ``reached`` is called when a gradient comes to an output.
    """

    def __init__(self, parameters: Sequence[Any], reached: Callable[[Any], None]) -> None:
        self._parameters, self._reached = parameters, reached
        self.streams: Set[Any] = set()
        self._outputs: List[weakref.ref[Output]] = []
        # On the CPU, because it may need as much memory as all gradients.
        self._own: List[Any] = []
        self._mean: Optional[Gradients] = None
        # By number, the gradients that have come in the backward that runs; None for one that is not known.
        self._came: Dict[int, Any] = {}
        self._hooks: List[Any] = []
        # Whether the backward that runs leaves parameters out: else DDP finishes by itself, and nothing is put back.
        self._leaves_out = False

    def output(self) -> Output:
        """Return a hook for one output."""
        made = Output(self._reached, self.streams)
        self._outputs.append(weakref.ref(made))
        return made

    def follow(self, nodes: Sequence[Any]) -> None:
        """Copy gradients when they come: DDP divides and sends views of its buckets before the backward ends."""
        self.unhook()
        self._hooks = [node.register_prehook(self._copier(number)) for number, node in enumerate(nodes)]

    def unhook(self) -> None:
        """Copy no more gradients when they come."""
        while self._hooks:
            self._hooks.pop().remove()

    def backward_begins(self, view: autograd.View) -> None:
        """A backward begins that trains the model, as far as the engine tells."""
        self._leaves_out = bool(self._hooks) and bool(view.left_out())

    def _copier(self, number: int) -> Callable[[Any], None]:
        def copy(gradients: Any) -> None:
            parameter, new = self._parameters[number], gradients[0]
            if new is None or not (self._leaves_out and self._is_partial()):
                return
            # What a hook of the program's makes of the sum is not known here.
            if new.is_sparse or number in self._came or hooks_sums(parameter):
                self._came[number] = None
                return
            with modes.hidden():
                whole = new if parameter.grad is None else parameter.grad.detach() + new.detach()
                self._came[number] = whole.detach().to("cpu", copy=True)

        return copy

    def _is_partial(self) -> bool:
        """Return whether no backward has reached some output yet."""
        outputs = [reference() for reference in self._outputs]
        return any(output is not None and not output.reached for output in outputs)

    def keep(self, reductions: int) -> None:
        """Copy the gradients of this rank, which are about to be averaged, after this number of reductions."""
        came, self._came = self._came, {}
        if reductions and not self._own:
            return
        if any(each is None for each in came.values()):
            self._own = []
        elif self._is_partial():
            gradients = [came.get(number, parameter.grad) for number, parameter in enumerate(self._parameters)]
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
        self.unhook()
        if self._outputs or self._own:
            self._outputs, self._own, self._mean, self._came = [], [], None, {}


class Output:
    """A hook on one output. It lives as long as the graph behind the output does."""

    __slots__ = ("__weakref__", "_call", "_streams", "reached")

    def __init__(self, call: Callable[[Any], None], streams: Set[Any]) -> None:
        self._call, self._streams, self.reached = call, streams, False

    def __call__(self, gradients: Any) -> None:
        self.reached = True
        # The engine runs a node, and this hook before it, in the stream of its forward.
        self._streams.update(devices.current_stream(each.device) for each in gradients if each is not None)
        self._call(gradients)
