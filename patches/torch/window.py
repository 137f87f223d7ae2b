"""What no rank has used since the last reduction, known without communication because skipped layers are shared.

All ranks skip the same layers (:mod:`ddpfix.sync`), so a parameter that stands in skipped layers only has no gradient
on any of them. An accumulation window has several forwards: what one of them used counts as used.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

import torch

from ddpfix import draws, sync

_NOTHING: FrozenSet[int] = frozenset()


class Window:
    """The forwards of one wrapped model since its last reduction.

    Args:
        wrapper: the DistributedDataParallel module.
        parameters: its parameters, in the order of DDP's own numbers.
    """

    def __init__(self, wrapper: Any, parameters: Sequence[Any]) -> None:
        self._wrapper = weakref.ref(wrapper)
        self.parameters = parameters
        self._numbers = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._layers: Optional[Dict[Tuple[str, int], FrozenSet[int]]] = None
        self._reduced: List[sync.Step] = []
        self._begun = False
        # Numbers of the parameters that no rank has used.
        self.unused: FrozenSet[int] = _NOTHING

    def forward_ended(self) -> None:
        """A forward that may be followed by a backward has ended; to be told so twice changes nothing."""
        wrapper: Any = self._wrapper()
        replica = sync.replica_of(wrapper)
        step = replica.last if replica is not None and wrapper.training else None
        skipped = _NOTHING if step is None else self._skipped(step)
        if any(earlier.reached for earlier in self._reduced):
            self._begun, self._reduced = False, []
        self.unused = self.unused & skipped if self._begun else skipped
        self._begun = True
        if wrapper.require_backward_grad_sync and step is not None:
            self._reduced.append(step)

    def number(self, parameter: Any) -> int:
        """DDP's number of a parameter, -1 if it has none."""
        return self._numbers.get(id(parameter), -1)

    def shared(self, numbers: Sequence[int]) -> List[int]:
        """Those of ``numbers`` that no rank has used."""
        return [number for number in numbers if number in self.unused]

    def _skipped(self, step: sync.Step) -> FrozenSet[int]:
        if not step.skipped:
            return _NOTHING
        layers = self.layers()
        found = [layers.get((skip.module, skip.layer), _NOTHING) for skip in step.skipped if not skip.part]
        return frozenset().union(*found)

    def layers(self) -> Dict[Tuple[str, int], FrozenSet[int]]:
        """(module, index) of each layer that may be skipped -> the parameters that stand in it and nowhere else."""
        if self._layers is None:
            wrapper: Any = self._wrapper()
            self._layers = {
                place: frozenset(numbers)
                for place, numbers in droppable(wrapper.module, sync.replica_of(wrapper), self.number).items()
            }
        return self._layers


def of(wrapper: Any) -> Window:
    """The window of a model under DDP; whoever asks for it has it told of each forward."""
    found = _WINDOWS.get(wrapper)
    if found is None:
        # DDP's own order; it has no public name.
        found = _WINDOWS[wrapper] = Window(wrapper, list(wrapper._build_params_for_reducer()[0]))
    return found


_WINDOWS: weakref.WeakKeyDictionary[Any, Window] = weakref.WeakKeyDictionary()


def droppable(model: Any, replica: Optional[sync.Replica], number: Any) -> Dict[Tuple[str, int], List[int]]:
    """(module, index) of each layer that may be skipped -> the numbers of its own parameters.

    Args:
        model: the module inside of the wrapper.
        replica: gives modules the names under which skips are noted; None: their names in the model.
        number: ``number(parameter)`` is -1 for those that do not count.
    """
    places: Dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            places[id(parameter)] = places.get(id(parameter), 0) + 1
    found: Dict[Tuple[str, int], List[int]] = {}
    for name, module, _ in draws.active(model):
        shown = name if replica is None else replica.key(module)[0]
        for place, layer in _layers(shown, module):
            own = [p for part in layer.modules() for p in part.parameters(recurse=False)]
            counts: Dict[int, int] = {}
            for parameter in own:
                counts[id(parameter)] = counts.get(id(parameter), 0) + 1
            alone = [p for p in layer.parameters() if counts[id(p)] == places.get(id(p)) and number(p) >= 0]
            found[place] = [number(p) for p in alone]
    return found


def _layers(name: str, module: Any) -> List[Tuple[Tuple[str, int], Any]]:
    """The layers for which a module draws, as skips name them (see :class:`ddpfix.calls.StepCall`)."""
    layers = _listed(module)
    if layers is not None:
        return [((name, index), layer) for index, layer in enumerate(layers)]
    holder, _, place = name.rpartition(".")
    return [((holder, int(place)) if place.isdigit() else (name, 0), module)]


def _listed(module: Any) -> Any:
    if isinstance(module, torch.nn.ModuleList):
        return module
    layers = getattr(module, "layers", None)
    if layers is not None and hasattr(layers, "__getitem__"):
        return layers
    lists = [child for child in module.children() if type(child).__name__ == "ModuleList"]
    return max(lists, key=len) if lists else None
