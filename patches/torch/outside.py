"""Parameters that an optimizer trains beside those of a model under DDP, and that no wrapper averages.

A loss with weights of its own, or a head that nobody has wrapped, is trained on each rank by that rank's gradients
alone. Whether that is meant cannot be seen from one rank: so it is said only of parameters that were the same on all
ranks before the first step and differ after it. Shards, and experts that are different from the beginning, are none of
these, nor are parameters whose gradients the program averages itself, nor those of an optimizer that trains no model
under DDP (copies that each rank adapts).
"""

from __future__ import annotations

import gc
import weakref
from typing import Any, Dict, List, Optional, Sequence

from torch import nn

from ddpfix.ranks.store import default_store, has, keys, put

from . import ddp, optimizers, sharding, sight, strays

# Before a step, after so many of them, parameters are looked at.
_LOOKS = (0, 1, 2, 4)
# Steps after which nobody looks any more for what other ranks have found: powers of two are looked at.
_PATIENCE = 1 << 10


def of(optimizer: Any) -> Optional[Outside]:
    """What an optimizer trains outside of the models under DDP; None if that is nothing."""
    models = optimizers.trained(optimizer)
    if not models or getattr(optimizer, "_overlap_with_ddp", False):
        return None
    known = {id(p) for model in ddp.known() for p in model.parameters}
    for model in ddp.known():
        # What DDP was told to leave out, or does not know, is a matter of that model.
        known.update(id(p) for p in model.wrapper.module.parameters())
        known.update(id(p) for p in strays.unknown(model).values())
    held = [p for group in optimizer.param_groups for p in group["params"]]
    found = [p for p in held if id(p) not in known and p.grad is not None and sight.comparable(p)]
    return Outside(models[0], found) if found else None


class Outside:
    """Those of one optimizer, compared with the first rank's.

    Args:
        model: one that the optimizer trains as well.
        parameters: those that no wrapper averages.
    """

    def __init__(self, model: ddp.Wrapped, parameters: Sequence[Any]) -> None:
        self.model = weakref.ref(model)
        self._ranks = sharding.ranks_of(model.wrapper.process_group)
        self._name = f"outside/{model.number}/{model.outside}"
        model.outside += 1
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        # How many are done.
        self._steps = 0
        self._waiting: List[sight.Sight] = []

    def step_begins(self) -> Optional[str]:
        """Called before each step; returns what was found, "" if nothing, and None if nothing can be found any more.

        A program that gives all ranks the same values by itself has done so by then.
        """
        done = self._steps
        if done in _LOOKS and not self._look():
            return None
        self._steps += 1
        if done & (done - 1):
            return ""
        store = default_store()
        if store is None or done > _PATIENCE:
            return None
        own = keys(store, self._name)
        if has(own, "found"):
            return str(own.get("found").decode())
        return "" if sharding.own_rank() == self._ranks[0] else self._compare(own)

    def _look(self) -> bool:
        """Look at the parameters; returns whether that was possible."""
        model, store = self.model(), default_store()
        found = {f"{number} {tuple(p.shape)} {p.dtype}": p for number, p in enumerate(self._alive())}
        if model is None or model.wrapper is None or store is None or len(found) != len(self._parameters):
            return False
        here = sight.take(self._steps, found, [])
        if sharding.own_rank() == self._ranks[0]:
            put(keys(store, self._name), f"sight/{self._steps}", here.to_text())
        else:
            self._waiting.append(here)
        return True

    def _alive(self) -> List[Any]:
        return [p for p in (reference() for reference in self._parameters) if p is not None]

    def _compare(self, own: Any) -> Optional[str]:
        while self._waiting:
            here = self._waiting[0]
            if not has(own, f"sight/{here.step}"):
                return ""
            there = sight.Sight.from_text(own.get(f"sight/{here.step}").decode())
            if there.names != here.names or (there.digest() != here.digest() and not here.step):
                # They are not the same ones on all ranks, and were not meant to be.
                return None
            if there.digest() != here.digest():
                return self._found(own, sight.difference(there, here), here.step)
            self._waiting.pop(0)
        return "" if self._steps <= _LOOKS[-1] else None

    def _found(self, own: Any, found: sight.Difference, step: int) -> str:
        parameters = self._alive()
        names = _names([parameters[number] for number in found.numbers])
        text = (
            f"rank {sharding.own_rank()} differs from rank {self._ranks[0]} since step {step} in parameters that no"
            f" wrapper averages and that were the same on both before: {', '.join(names)} (by {found.most:.2g} or"
            " more). Wrap the module that has them, or make it a part of the wrapped one (DDPFIX_DRIFT=off does not"
            " look)"
        )
        put(own, "found", text)
        return text


def _names(parameters: Sequence[Any]) -> List[str]:
    """Names of some parameters by the modules that hold them."""
    wanted: Dict[int, str] = {id(p): f"a parameter of shape {tuple(p.shape)}" for p in parameters[:4]}
    for module in [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]:
        for name, parameter in vars(module).get("_parameters", {}).items():
            if id(parameter) in wanted:
                wanted[id(parameter)] = f"{name} of a {type(module).__name__}"
    more = len(parameters) - len(wanted)
    return [*wanted.values(), *([f"and {more} more"] if more else [])]
