"""Which layers a forward calls, for the trace of a model whose LayerDrop is left as the toolkit ships it."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Set


class LayerCalls:
    """Notes the calls of layers by their numbers, from :meth:`begin` until :meth:`skipped` is asked.

    Where ddpfix draws for the layers it knows what is skipped, and there is no need of this.

    Args:
        layers: the modules.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._count = len(layers)
        self._called: Set[int] = set()
        self._handles = [layer.register_forward_pre_hook(self._noting(n)) for n, layer in enumerate(layers)]

    def _noting(self, number: int) -> Callable[..., None]:
        called = self._called

        def note(layer: Any, inputs: Any) -> None:
            called.add(number)

        return note

    def begin(self) -> None:
        self._called.clear()

    def skipped(self) -> List[int]:
        """The numbers of the layers that were not called; empty if none was, as in a forward of other parts alone."""
        if not self._called:
            return []
        return [number for number in range(self._count) if number not in self._called]

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
