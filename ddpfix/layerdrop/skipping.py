"""Which modules of a model skip layers, at what rate, and whether all ranks skip the same ones."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Sequence, Tuple, Union

from ddpfix.layerdrop import decisions, rates, training
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.layerdrop.drawing import UNREADABLE, applies, drawing_methods, held
from ddpfix.layerdrop.shared_method import Covered
from ddpfix.models import internals

COVERED: Dict[type, Covered] = {}


def rate_of(module: Any, has_peers: bool = True) -> float:
    """Return the rate at which a module skips layers, or is skipped; 0 for one that does not draw, or that never skips.

    Args:
        has_peers: whether it stands in a list of modules of its class; one that does not is an augmentation, say.
    """
    rates = [_rate_at(level, module, has_peers) for level in type(module).__mro__]
    return max(rates, default=0.0)


def _rate_at(level: type, module: Any, has_peers: bool) -> float:
    """Return the rate by the methods of one class of a module, as far as no subclass has other ones."""
    covered = COVERED.get(level)
    found: Sequence[Union[Covered, _Uncovered]]
    found = _uncovered(level) if covered is None else (covered, *covered.others)
    rates = [0.0]
    for each in found:
        is_own = next(other for other in type(module).__mro__ if each.method in vars(other)) is level
        if is_own and each.applies(module, has_peers):
            rates.append(0.0 if each.never else each.rate(module))
    return max(rates)


class _Uncovered:
    """A method that draws and is as shipped (DDPFIX_LAYERDROP=stock), or cannot be covered."""

    never = examined = False

    def __init__(self, owner: type, method: str) -> None:
        function = innermost(vars(owner)[method])
        read = decisions.of(function, owner)
        self.method = method
        self.decisions = tuple(each for each in read.decisions if each.rate is not None)
        self._paths, self._read = rates.paths(read), rates.reader(read, self.decisions, function)

    def rate(self, module: Any) -> float:
        """Return the rate of this module; 0 where only a forward can read it."""
        return 0.0 if any(held(module, path) is UNREADABLE for path in self._paths) else self._read(module)

    def applies(self, module: Any, has_peers: bool) -> bool:
        """Return whether its decisions are about layers in this module."""
        return any(applies(each, module, has_peers) for each in self.decisions)


def _uncovered(owner: type) -> Tuple[_Uncovered, ...]:
    if owner not in _RATES:
        _RATES[owner] = tuple(_Uncovered(owner, method) for method in drawing_methods(owner))
    return _RATES[owner]


_RATES: weakref.WeakKeyDictionary[type, Tuple[_Uncovered, ...]] = weakref.WeakKeyDictionary()


def active(model: Any) -> List[Tuple[str, Any, float]]:
    """(name, module, rate) of every module of ``model`` that skips layers, or is skipped, at a rate above 0."""
    peers = set(map(id, training.peers(model)))
    rated = ((name, module, rate_of(module, id(module) in peers)) for name, module in internals.named_modules(model))
    return [(name, module, rate) for name, module, rate in rated if rate > 0]


def is_shared(module: Any) -> bool:
    """Return whether all ranks take the same decisions for a module that skips layers."""
    covered = [COVERED[level] for level in type(module).__mro__ if level in COVERED]
    return any(not each.never for each in covered)


def may_skip(model: Any) -> bool:
    """Return whether a model has modules that draw for their layers, at whatever rate now."""
    return any(level in COVERED for _, part in internals.named_modules(model) for level in type(part).__mro__)
