"""Finds the classes that draw for layers, and whether their decisions are about layers in a certain module."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any, Dict, List, Optional, Tuple

import torch

from ddpfix.layerdrop import decisions, rates, training
from ddpfix.layerdrop.call import is_numpy_generator
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.layerdrop.numbers import may_draw
from ddpfix.patching.site import PatchError

# Where toolkits draw for their layers: in forward, or in a method that it calls; a list of layers that drops some does
# it where it is iterated over.
METHODS = ("forward", "extract_features", "_forward", "__iter__")


def drawing_method(owner: type) -> Optional[str]:
    """Return the method of a class itself, not of its bases, that draws for layers; None if there is none."""
    return next((name for name in METHODS if name in vars(owner) and _decisions(vars(owner)[name])), None)


def _decisions(function: Any) -> Tuple[decisions.Decision, ...]:
    """Return the decisions of a function, proved or not; none where its source is not what runs."""
    try:
        return found(innermost(function)).decisions
    except PatchError:
        return ()


def rate_paths(function: Any) -> Tuple[Tuple[str, ...], ...]:
    """Return the places of a function's rates, in order: each as ``("layerdrop",)`` or ``("config", "layerdrop")``."""
    try:
        return rates.paths(found(innermost(function)))
    except PatchError:
        return ()


def drawing_classes(model: Any) -> Dict[type, Any]:
    """Return the classes in a model that draw for layers, for a list or for themselves, with a module of each."""
    peers = set(training.peers(model))
    classes: Dict[type, Any] = {}
    for module in model.modules():
        for level in type(module).__mro__:
            if level not in classes and _draws_here(level, module, module in peers):
                classes[level] = module
    return classes


def check(owner: type, module: Any) -> None:
    """Raise unless the generators that a module holds are numpy's: others are the program's own way to agree.

    Args:
        owner: the class whose method draws.
        module: an instance.

    Raises:
        PatchError: it draws from another generator, or its source could not be read.
    """
    if drawing_method(owner) is None:
        raise PatchError(_unread(owner))
    for each in _decisions(vars(owner)[method_of(owner)]):
        names = each.number.generator.split(".") if each.number is not None and each.number.generator else []
        if names and not is_numpy_generator(functools.reduce(getattr, names, module)):
            raise PatchError(f"it draws from a generator of its own, {'.'.join(names)}")


def _draws_here(level: type, module: Any, has_peers: bool) -> bool:
    method = drawing_method(level)
    if method is None:
        return bool(_unread(level))
    return any(applies(each, module, has_peers) for each in _decisions(vars(level)[method]))


def applies(decision: decisions.Decision, module: Any, has_peers: bool) -> bool:
    """Return whether a decision is about layers in this module: parts with parameters, or itself among its like."""
    if not decision.layers:
        return has_peers and not decision.is_part and _has_parameters(module)
    held = [getattr(module, name, None) for name in decision.holders] or [module]
    parts = [part for each in held for part in (_parts(each) or [each])]
    return any(isinstance(part, torch.nn.Module) and _has_parameters(part) for part in parts)


def _parts(value: Any) -> List[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []


# Names that only a rate at which layers are skipped has: where there is no source, they tell that something is missed.
_RATES_BY_NAME = ("layerdrop", "layer_drop", "stochastic_depth")


def _unread(level: type) -> str:
    """Return why a method that draws, and names such a rate, could not be read; empty where there is none."""
    for inner in [innermost(vars(level)[name]) for name in METHODS if name in vars(level)]:
        if isinstance(inner, FunctionType) and may_draw(inner):
            names = inner.__code__.co_names
            if any(rate in name for name in names for rate in _RATES_BY_NAME):
                try:
                    decisions.of(inner)
                except PatchError as error:
                    return str(error)
    return ""


def _has_parameters(module: Any) -> bool:
    return next(module.parameters(), None) is not None


def method_of(owner: type) -> str:
    """Return the method of a class that draws for layers.

    Raises:
        PatchError: it has none.
    """
    method = drawing_method(owner)
    if method is None:
        raise PatchError(f"{owner.__module__}.{owner.__qualname__} does not draw for layers")
    return method


def found(inner: Any) -> decisions.Found:
    """Return what was found out about a function below all decorators.

    Raises:
        PatchError: it is no Python function, or its source is not what runs.
    """
    if not isinstance(inner, FunctionType):
        raise PatchError(f"{inner!r} is not a Python function")
    return decisions.of(inner)
