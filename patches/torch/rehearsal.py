"""What has to be known of the first step without the flag, after which DDP makes its buckets anew.

DDP takes the order in which the first gradients come. What a rank skips in that step would come last, and share buckets
with whatever comes last, too; so the order is given before it, in a reduction of nothing that is not communicated.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Set

from . import silent


def give_order(wrapper: Any, parameters: Sequence[Any]) -> None:
    """Have DDP make its buckets from the last parameter to the first, in its next forward.

    Whoever calls this returns all buckets at once in a communication hook meanwhile. Nothing happens where gradients
    are there already.

    Args:
        wrapper: the DistributedDataParallel module, before its first step.
        parameters: its parameters, in the order of the reducer's own numbers.
    """
    if any(parameter.grad is not None for parameter in parameters):
        return
    reducer = wrapper.reducer
    reducer.prepare_for_backward([])
    silent.within_backward(lambda: silent.report(reducer, parameters, range(len(parameters))))
    for parameter in parameters:
        parameter.grad = None


class Arrivals:
    """Notes which gradients come, from the first forward that is to be reduced to the one after its backward.

    Before torch 2.1, to ask the reducer whether it has finished makes it build its buckets anew if it has, which is a
    collective, on this rank alone. Where all gradients have come there is nothing to ask.

    Args:
        parameters: those of the wrapped model.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._hooks: List[Any] = []
        self._came: Set[int] = set()

    def begin(self) -> None:
        """A forward that will be reduced has ended."""
        self.end()
        for number, parameter in enumerate(self._parameters):
            if parameter.requires_grad:
                self._hooks.append(parameter.register_hook(self._noted(number)))

    def _noted(self, number: int) -> Callable[[Any], None]:
        return lambda gradient: self._came.add(number)

    def complete(self) -> bool:
        """Whether all gradients have come."""
        return len(self._came) == len(self._parameters)

    def end(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._came.clear()
