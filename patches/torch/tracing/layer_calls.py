"""Which layers a forward calls, for the trace of a model whose LayerDrop is left as the toolkit ships it."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Set

from torch.nn.modules import module as modules


class LayerCalls:
    """Notes the calls of layers by their numbers, from :meth:`begin` until :meth:`skipped` is asked.

    Where ddpfix draws for the layers it knows what is skipped, and there is no need of this. The hook is one for all
    modules, and is there during a forward only: a hook on a layer would be saved with it.

    Args:
        layers: the modules.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._numbers: Dict[int, int] = {id(layer): number for number, layer in enumerate(layers)}
        self._called: Set[int] = set()
        self._handle: Any = None

    def _note(self, layer: Any, inputs: Any) -> None:
        number = self._numbers.get(id(layer))
        if number is not None:
            self._called.add(number)

    def begin(self) -> None:
        self.end()
        self._called.clear()
        self._handle = modules.register_module_forward_pre_hook(self._note)

    def end(self) -> None:
        """Note no calls any more: the forward has ended, or failed."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def skipped(self) -> List[int]:
        """Return the numbers of the layers that were not called; empty if none was, as in a forward of other parts."""
        if not self._called:
            return []
        return [number for number in range(len(self._numbers)) if number not in self._called]
