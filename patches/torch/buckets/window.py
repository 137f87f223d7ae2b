"""Gradient accumulation: which forwards belong to one reduction, and which parameters no rank has used in it.

All ranks skip the same layers (:mod:`ddpfix.layerdrop.schedule`), so a parameter that stands in skipped layers only has
no gradient on any rank, and every rank knows it without communication. An accumulation window has several forwards: a
parameter that one of them used counts as used.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

from ddpfix.layerdrop import cover, training
from ddpfix.patching.site import Site

from ..internals.wrapper import inner
from ..pipeline import ddp

_NOTHING: FrozenSet[int] = frozenset()


def hold(site: Site, module: ModuleType, owner: Any) -> None:
    """Before torch 2.4 all micro-batches of an accumulation window skip the same layers.

    There, DDP with ``find_unused_parameters`` averages only what the last micro-batch used: a parameter that an earlier
    one used, under ``no_sync``, keeps the gradient of its own rank, and ranks drift apart without a word (pytorch issue
    69031, mended by pull request 124193). With one decision a window, what is unused at the end was never used in it.
    """
    ddp.put(site, owner, Hold())


class Hold(ddp.Stage):
    place = "accumulation"

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        model.holds = True

    def ended(self, model: ddp.Wrapped) -> None:
        model.holds = False


class Window:
    """The forwards of one wrapped model since its last reduction.

    Args:
        model: the model under DDP.
    """

    def __init__(self, model: ddp.Wrapped) -> None:
        self._model = model
        self._numbers = {id(parameter): index for index, parameter in enumerate(model.parameters)}
        self._layers: Optional[Dict[Tuple[str, int], FrozenSet[int]]] = None
        # The last forward whose gradients are reduced, and whether there was a forward since the last reduction.
        self._reduced: Optional[training.Step] = None
        self._begun = False
        self._seen: Optional[training.Step] = None
        # The places of the stages that need it.
        self.users: Set[str] = set()
        # Numbers of the parameters that no rank has used.
        self.unused: FrozenSet[int] = _NOTHING

    def forward_ended(self, output: Any = None) -> None:
        """Called after a forward that a backward may follow; a second call for the same forward changes nothing."""
        wrapper, replica = self._model.wrapper, ddp.replica(self._model)
        step = replica.last if replica is not None and ddp.trains(wrapper) else None
        if step is not None and step is self._seen:
            return
        self._seen = step
        if self._reduced is not None and self._reduced.reached:
            self._begun, self._reduced = False, None
        skipped = _NOTHING if step is None else self._skipped(step)
        self.unused = self.unused & skipped if self._begun else skipped
        self._begun = True
        if wrapper.require_backward_grad_sync and step is not None:
            self._reduced = step

    def number(self, parameter: Any) -> int:
        """DDP's number of a parameter, -1 if it has none."""
        return self._numbers.get(id(parameter), -1)

    def _skipped(self, step: training.Step) -> FrozenSet[int]:
        if not step.skipped:
            return _NOTHING
        layers = self.layers()
        skips: Dict[Tuple[str, int], int] = {}
        for skip in step.skipped:
            if not skip.part:
                skips[skip.module, skip.layer] = skips.get((skip.module, skip.layer), 0) + 1
        # A module that is called twice in a forward (siamese, contrastive) may skip a layer in one of the calls only.
        unused = [layers.get(place, _NOTHING) for place, count in skips.items() if count >= step.calls_of(*place)]
        return frozenset().union(*unused)

    def layers(self) -> Dict[Tuple[str, int], FrozenSet[int]]:
        """(module, index) of each layer that may be skipped -> the parameters that stand in it and nowhere else."""
        if self._layers is None:
            numbers_of = droppable(self._model.wrapper.module, ddp.replica(self._model), self.number)
            self._layers = {place: frozenset(numbers) for place, numbers in numbers_of.items()}
        return self._layers


WINDOW: ddp.Slot[Window] = ddp.Slot()
_PLACE = "window"


def window_of(model: ddp.Wrapped, user: str) -> Optional[Window]:
    """Return the accumulation window of a model that may skip layers, which follows its forwards; None for others.

    Args:
        model: its record.
        user: the place of the stage that needs it, until :func:`leave`.
    """
    window = WINDOW.of(model)
    if window is None and ddp.replica(model) is not None and cover.may_skip(inner(model.wrapper)):
        window = WINDOW.put(model, Window(model))
        model.attach(_PLACE, after=window.forward_ended)
    if window is not None:
        window.users.add(user)
    return window


def leave(model: ddp.Wrapped, user: str) -> None:
    """Say that a stage needs the window of a model no more; it goes with the last one."""
    window = WINDOW.of(model)
    if window is not None:
        window.users.discard(user)
        if not window.users:
            model.detach(_PLACE)
            WINDOW.clear(model)


def droppable(model: Any, replica: Optional[training.Replica], number: Any) -> Dict[Tuple[str, int], List[int]]:
    """(module, index) of each layer that may be skipped -> the numbers of its own parameters.

    Args:
        model: the module inside of the wrapper.
        replica: gives modules the names under which skips are noted; None: their names in the model.
        number: ``number(parameter)`` is -1 for a parameter that does not count.
    """
    places: Dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            places[id(parameter)] = places.get(id(parameter), 0) + 1
    numbers: Dict[Tuple[str, int], List[int]] = {}
    for name, module, _ in cover.active(model):
        shown = name if replica is None else replica.key(module)[0]
        for place, layer in layers_of(shown, module):
            own = [p for part in layer.modules() for p in part.parameters(recurse=False)]
            counts: Dict[int, int] = {}
            for parameter in own:
                counts[id(parameter)] = counts.get(id(parameter), 0) + 1
            unshared = [p for p in layer.parameters() if counts[id(p)] == places.get(id(p)) and number(p) >= 0]
            numbers[place] = [number(p) for p in unshared]
    return numbers


def layers_of(name: str, module: Any) -> List[Tuple[Tuple[str, int], Any]]:
    """Return the layers for which a module draws, as skips name them (see :class:`ddpfix.layerdrop.call.StepCall`)."""
    layers = cover.listed(module)
    if layers is not None:
        # By index: iterating over a list of layers may make it draw for them (torchaudio, WeNet 3.1).
        return [((name, index), layers[index]) for index in range(len(layers))]
    holder, _, place = name.rpartition(".")
    return [((holder, int(place)) if place.isdigit() else (name, 0), module)]
