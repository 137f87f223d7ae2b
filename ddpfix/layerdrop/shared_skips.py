"""One call of a function that skips layers: what its comparisons give instead of what this rank has drawn.

The draw is made as without ddpfix, and its value stays the program's own. Replaced is the truth of the comparison, by
one of the same kind (bool, numpy's, a tensor of its device), where the shared number gives another one.
"""

from __future__ import annotations

import ast
import operator
import sys
from contextvars import ContextVar
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch

from ddpfix.layerdrop import training
from ddpfix.layerdrop.comparisons import Decision
from ddpfix.patching.site import Registry

# The call whose function is running here; comparisons outside of one are the program's own.
CURRENT: ContextVar[Optional[Call]] = ContextVar("ddpfix_call", default=None)
_OPERATORS: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Extension:
    """What a patch of a toolkit adds to forwards that skip layers; each method adds nothing by default."""

    def answers(self, check: str) -> bool:
        """Return whether a check of the toolkit's, for what runs every layer, is skipped: ranks that agree may skip."""
        return False

    def observes(self, module: Any, kwargs: Dict[str, Any]) -> bool:
        """Return whether a call outside of a wrapped model has to be observed, with its original numbers."""
        return False

    def begins(self, module: Any) -> Any:
        """Return what :meth:`ended` needs; None if it is not to be called."""

    def ended(self, module: Any, begun: Any, call: Call) -> None:
        """Called when the forward has returned, inside of its decorators, where outputs collect."""


EXTENSIONS: Registry[Extension] = Registry("each forward that skips layers")
_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


class SkippedLayers(NamedTuple):
    """What a call has left out: a layer's index (-1: the module itself), certain if nothing else in it runs that."""

    layer: int
    rate: str
    is_certain: bool


class Comparison:
    """Takes the place of one comparison in the copy of a function.

    Args:
        site: its number in the function.
        examined: whether the code was examined: a module that draws for itself counts as a layer, wherever it stands.
    """

    def __init__(self, decision: Decision, site: int, examined: bool) -> None:
        assert decision.number is not None and decision.rate is not None
        self._compare = _OPERATORS[type(decision.node.ops[0])]
        self._number, self._is_left, self.skip = decision.number, decision.is_left, decision.skip
        self.is_only_run, self.draws_itself = decision.is_only_run, not decision.layers
        self.site, self.examined, self.rate = site, examined, "".join(decision.rate.path[-1:])

    def __call__(self, left: Any, right: Any, generator: Any = None, *layers: Any) -> Any:
        truth = self._compare(left, right)
        call = CURRENT.get()
        if call is None:
            return truth
        if self._number.generator and not is_numpy_generator(generator):
            return truth
        return call.decide(self, truth, right if self._is_left else left, layers)

    def with_number(self, unit: float, rate: Any) -> bool:
        """Return the truth for a number of the unit interval."""
        return bool(self._compare(unit, float(rate)) if self._is_left else self._compare(float(rate), unit))


class Call:
    """One training call of a function that skips layers; without a stream as base, this rank's own numbers count.

    Args:
        step: to which the layers that were skipped are added at the end: as the call ``number`` of the module ``name``.
    """

    def __init__(
        self,
        module: Any,
        base: Optional[int] = None,
        replica: Optional[training.Replica] = None,
        method: str = "",
        step: Optional[training.Step] = None,
        name: str = "",
        number: int = 0,
    ) -> None:
        self.module, self.base, self._replica, self.method = module, base, replica, method
        self._step, self._name, self._number = step, name, number
        # Whether all layers run, whatever the comparisons say (a sharded model, see code_copy.py).
        self.whole = False
        self.left_out: List[SkippedLayers] = []
        # How often it was asked about each layer.
        self.visits: Dict[int, int] = {}
        self._asked: Dict[Any, int] = {}
        self._last = 0

    def decide(self, comparison: Comparison, truth: Any, rate: Any, layers: Any) -> Any:
        """Return this rank's own truth of a comparison, or the other; without layers the module draws for itself."""
        layer = self.module if comparison.draws_itself else next(filter(_is_layer, layers), None)
        key = None if layer is None else self._key(comparison, layer)
        try:
            own = bool(truth)
            shared = own if key is None else comparison.with_number(self._unit(comparison, key), rate)
        except (TypeError, ValueError, RuntimeError):
            # No single number: the program's own code says what is wrong with it.
            return truth
        if layer is not None:
            index = -1 if comparison.draws_itself else self._index(layer)
            self.visits[index] = self.visits.get(index, 0) + 1
            if shared == comparison.skip:
                self.left_out.append(SkippedLayers(index, comparison.rate, comparison.is_only_run))
        return truth if shared == own else _negated(truth)

    def is_flagged(self) -> bool:
        """Return whether DDP looks for unused parameters in the model."""
        return self._replica is not None and self._replica.flagged

    def drops(self, layer: Any, rate: float) -> bool:
        """Return whether all ranks skip a layer of the module, for a patch that leaves it out by itself."""
        if self.base is None or self._replica is None:
            return False
        skipped = training.uniform(training.fold(self.base, 0, self._replica.key(layer)[1]), 0) < rate
        index = self._index(layer)
        self.visits[index] = self.visits.get(index, 0) + 1
        if skipped:
            self.left_out.append(SkippedLayers(index, "", True))
        return skipped

    def _key(self, comparison: Comparison, layer: Any) -> Optional[int]:
        """Return the number of a layer that all ranks have under one name; None where each rank decides."""
        if self.base is None or self._replica is None or not self._replica.has(layer):
            return None
        if comparison.draws_itself and not comparison.examined and not self._replica.has_peers(layer):
            return None
        return self._replica.key(layer)[1]

    def _unit(self, comparison: Comparison, key: int) -> float:
        place = comparison.site, key
        self._asked[place] = self._asked.get(place, -1) + 1
        assert self.base is not None
        return training.uniform(training.fold(self.base, comparison.site, key), self._asked[place])

    def _index(self, layer: Any) -> int:
        """Return the index of a layer in the list of the module; one of another list is not recorded as one of this."""
        layers, count = listed(self.module), layer_count(self.module)
        # By index: iterating over a list of layers may make it draw for them (torchaudio, WeNet 3.1). In most calls
        # they come in their order.
        for index in ((self._last + each) % count for each in range(count)):
            if layers[index] is layer:
                self._last = index
                return index
        return -2

    def ended(self) -> None:
        """Called when a call that left something out has ended, whether it returned or raised."""
        if self._step is None or self.whole:
            return
        counts: Dict[int, int] = {}
        for left in self.left_out:
            counts[left.layer] = counts.get(left.layer, 0) + 1
            # A layer that ran in another turn of this call was used.
            was_skipped = left.is_certain and left.layer >= 0 and counts[left.layer] == self.visits[left.layer]
            if left.layer == -1 or was_skipped:
                self._step.skipped.append(self._skip(left))

    def _skip(self, left: SkippedLayers) -> training.Skip:
        """Return the skip of a layer; one that draws for itself, or for a branch, has its index from its own list."""
        if left.layer >= 0:
            return training.Skip(self._name, self._number, left.layer)
        holder, _, place = self._name.rpartition(".")
        part = left.rate.partition("_drop")[0] if "branch" in left.rate else ""
        if place.isdigit():
            return training.Skip(holder, self._number, int(place), part)
        return training.Skip(self._name, self._number, 0, part)


def listed(module: Any) -> Any:
    """Return the layers of a module: itself if it is a list, its list ``layers``, or the longest list in it."""
    if isinstance(module, _LISTS):
        return module
    layers = _sequence(getattr(module, "layers", None))
    if layers is not None:
        return layers
    lists = [child for child in map(_sequence, module.children()) if child is not None]
    return max(lists, key=len) if lists else None


def _sequence(value: Any) -> Any:
    """Return the modules that a list or a class of its own holds; None for what holds anything else."""
    if isinstance(value, _LISTS):
        return value
    try:
        held = [value[index] for index in range(len(value))]
    except (TypeError, KeyError, IndexError, AttributeError, NotImplementedError):
        return None
    return held if held and all(isinstance(each, torch.nn.Module) for each in held) else None


def layer_count(module: Any) -> int:
    """Return how many layers a module has."""
    layers = listed(module)
    return 0 if layers is None else len(layers)


def _is_layer(value: Any) -> bool:
    """Return whether a value is a module with parameters: one without is an augmentation, and each rank has its own."""
    return isinstance(value, torch.nn.Module) and (
        next(value.parameters(), None) is not None or any(map(_is_gathered, value.modules()))
    )


def _is_gathered(module: torch.nn.Module) -> bool:
    """Return whether FSDP1 has put a tensor in the place of a parameter, as it does while it has them gathered."""
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in vars(module).values())


def is_numpy_generator(value: Any) -> bool:
    """Return whether a value is a generator of numpy."""
    kind = getattr(getattr(sys.modules.get("numpy"), "random", None), "Generator", None)
    return kind is not None and isinstance(value, kind)


def _negated(truth: Any) -> Any:
    """Return the opposite, of the same kind."""
    if isinstance(truth, bool):
        return not truth
    return truth.logical_not() if isinstance(truth, torch.Tensor) else ~truth
