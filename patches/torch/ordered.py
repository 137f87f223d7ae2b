"""The first step without the flag, after which DDP makes its buckets anew in the order in which gradients came.

A parameter that no rank uses in that step would come last, after the backward, and its layer would share a bucket with
whatever comes last, too. It is reported in its place instead: right before the first gradient of what stands below it.
"""

from __future__ import annotations

from typing import Any, Callable, FrozenSet, List, Sequence


class FirstStep:
    """Hooks on all parameters, until a backward has ended.

    Args:
        parameters: those of the wrapped model, in the order of the reducer's own numbers.
        report: ``report(number)`` tells the reducer that a parameter has no gradient in this step.
    """

    def __init__(self, parameters: Sequence[Any], report: Callable[[int], None]) -> None:
        self._parameters = parameters
        self._report = report
        self._hooks: List[Any] = []
        self._waiting: List[int] = []

    def begin(self, unused: FrozenSet[int]) -> None:
        """A forward that will be reduced has ended; ``unused`` are the numbers of what no rank has used."""
        self.end()
        # Gradients come from the last parameter to the first.
        self._waiting = sorted(unused)
        for number, parameter in enumerate(self._parameters if unused else ()):
            if parameter.requires_grad and number not in unused:
                self._hooks.append(parameter.register_hook(self._reported_before(number)))

    def _reported_before(self, number: int) -> Callable[[Any], None]:
        def comes(gradient: Any) -> None:
            while self._waiting and self._waiting[-1] > number:
                self._report(self._waiting.pop())

        return comes

    def end(self) -> None:
        """Take the hooks away; what is still waiting is closed with everything else."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._waiting.clear()
