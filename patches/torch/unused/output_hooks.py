"""Hooks on the outputs of a model's forward, by which the first gradient of a backward is noticed."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional

from ..internals.tensors import Prehook
from .local_gradients import FirstStep


class Outputs:
    """Puts hooks on the nodes behind outputs: on the tensors themselves they would be visible, as when one is saved."""

    def __init__(self, reached: Callable[[Any], None]) -> None:
        self._reached, self._hook = reached, Prehook(reached)

    def hook(self, outputs: Iterable[Any], first: Optional[FirstStep]) -> None:
        """Put a hook on each of these.

        Args:
            first: the model's first step, which notes which outputs a gradient has reached; None in later ones.
        """
        for tensor in outputs:
            if first is not None:
                tensor.grad_fn.register_prehook(first.output())
            elif tensor.output_nr == 0:
                self._hook.put(tensor.grad_fn)
            else:
                tensor.grad_fn.register_prehook(self._reached)
