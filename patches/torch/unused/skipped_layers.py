"""Layers that all ranks skip: every rank knows without communication that nobody has used their parameters.

All ranks skip the same layers (:mod:`ddpfix.layerdrop.training`), so a parameter that stands in skipped layers only has
no gradient on any rank. A window of gradient accumulation has several forwards: a parameter that one of them used
counts as used.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from ddpfix.layerdrop import cover, shared_skips, training

from ..internals.wrapper import inner
from ..pipeline import ddp

_NOTHING: FrozenSet[int] = frozenset()
# A layer as skips name it: the module that draws for it, and its index.
Layer = Tuple[str, int]


class SkippedLayers:
    """What a wrapped model's forwards have skipped since its last reduction: parameters that no rank has used."""

    def __init__(self, model: ddp.Wrapped) -> None:
        self._model = model
        self._layers: Optional[Dict[Layer, FrozenSet[int]]] = None
        # The last forward whose gradients are reduced, and whether there was a forward since the last reduction.
        self._reduced: Optional[training.Step] = None
        self._begun = False
        self.parameters = _NOTHING

    def forward_ended(self, output: Any) -> None:
        """Called after a forward that a backward may follow."""
        wrapper, replica = self._model.wrapper, ddp.replica(self._model)
        step = replica.last if replica is not None and ddp.trains(wrapper) else None
        if self._reduced is not None and self._reduced.reached:
            self._begun, self._reduced = False, None
        skipped = _NOTHING if step is None else self._skipped(step)
        self.parameters = self.parameters & skipped if self._begun else skipped
        self._begun = True
        if wrapper.require_backward_grad_sync and step is not None:
            self._reduced = step

    def _skipped(self, step: training.Step) -> FrozenSet[int]:
        if not step.skipped:
            return _NOTHING
        if self._layers is None:
            self._layers = _parameters_of_layers(self._model)
        skips: Dict[Layer, int] = {}
        for skip in step.skipped:
            if not skip.part:
                skips[skip.module, skip.layer] = skips.get((skip.module, skip.layer), 0) + 1
        # A module that is called twice in a forward (siamese, contrastive) may skip a layer in one of the calls only.
        unused = [self._layers.get(each, _NOTHING) for each, count in skips.items() if count >= step.calls_of(*each)]
        return frozenset().union(*unused)


SKIPPED: ddp.Slot[SkippedLayers] = ddp.Slot()
_PLACE = "skipped_layers"


def follow(model: ddp.Wrapped) -> None:
    """Follow the forwards of a model that may skip layers."""
    if ddp.replica(model) is not None and cover.may_skip(inner(model.wrapper)):
        model.attach(_PLACE, after=SKIPPED.put(model, SkippedLayers(model)).forward_ended)


def leave(model: ddp.Wrapped) -> None:
    model.detach(_PLACE)
    SKIPPED.clear(model)


def _parameters_of_layers(model: ddp.Wrapped) -> Dict[Layer, FrozenSet[int]]:
    """Return the numbers of the parameters that stand in each layer that may be skipped, and nowhere else."""
    module, replica = model.wrapper.module, ddp.replica(model)
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters)}
    places = _places(module)
    found: Dict[Layer, FrozenSet[int]] = {}
    for name, holder, _ in cover.active(module):
        shown = name if replica is None else replica.key(holder)[0]
        for layer, part in layers_of(shown, holder):
            own = _places(part)
            found[layer] = frozenset(
                numbers[key] for key, count in own.items() if count == places.get(key) and key in numbers
            )
    return found


def _places(module: Any) -> Dict[int, int]:
    """Return in how many modules within this one each parameter stands, by its id."""
    places: Dict[int, int] = {}
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            places[id(parameter)] = places.get(id(parameter), 0) + 1
    return places


def layers_of(name: str, module: Any) -> List[Tuple[Layer, Any]]:
    """Return the layers for which a module draws, named as in skips (:class:`ddpfix.layerdrop.shared_skips.Call`)."""
    layers = shared_skips.listed(module)
    if layers is not None:
        # By index: iterating over a list of layers may make it draw for them (torchaudio, WeNet 3.1).
        return [((name, index), layers[index]) for index in range(len(layers))]
    holder, _, place = name.rpartition(".")
    return [((holder, int(place)) if place.isdigit() else (name, 0), module)]
