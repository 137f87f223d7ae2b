"""Finds the classes that draw for layers, and whether their decisions are about layers in a certain module."""

from __future__ import annotations

import ast
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from ddpfix.layerdrop import comparisons, loops, numbers, source, training
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.layerdrop.comparisons import Decision
from ddpfix.layerdrop.shared_skips import is_numpy_generator
from ddpfix.models import internals
from ddpfix.patching.site import PatchError
from ddpfix.user_code import module_of

_PROPERTY = "a property that is computed"
# Stands for what only a forward can read: a property is the program's own code.
UNREADABLE = object()
# What a class has that gives an attribute, and runs none of the program's code.
_PLAIN = (FunctionType, MethodType, staticmethod, classmethod, type, MemberDescriptorType, GetSetDescriptorType)


def held(module: Any, path: Sequence[str]) -> Any:
    """Return what a module holds by a path of names; None where it lacks it, UNREADABLE where to read it runs code."""
    value = module
    for name in path:
        if not _is_plain(value, name):
            return UNREADABLE
        try:
            value = getattr(value, name, None)
        except Exception:
            return UNREADABLE
    return value


def _is_plain(owner: Any, name: str) -> bool:
    """Return whether to read an attribute runs none of the program's code."""
    found = next((vars(level)[name] for level in type(owner).__mro__ if name in vars(level)), None)
    if not hasattr(type(found), "__get__") or isinstance(found, _PLAIN):
        return True
    # What keeps its value (functools.cached_property) has left it in the object.
    return name in getattr(owner, "__dict__", ()) and not hasattr(type(found), "__set__")


def drawing_methods(owner: type) -> Tuple[str, ...]:
    """Return the methods of a class itself, not of its bases, that draw for layers."""
    return tuple(name for name in _called(owner) if name in vars(owner) and found_in(vars(owner)[name]).decisions)


def found_in(method: Any) -> comparisons.Found:
    """Return what a method below its decorators decides, proved or not; nothing where its source is not what runs."""
    try:
        return comparisons.of(innermost(method))
    except PatchError:
        return comparisons.NOTHING


def rate_paths(owner: type) -> Tuple[Tuple[str, ...], ...]:
    """Return where the first of these methods reads its rates."""
    first = drawing_methods(owner)[:1]
    return tuple(path for name in first for path in comparisons.paths(found_in(vars(owner)[name]).decisions))


def _called(owner: type) -> List[str]:
    """Return the names of methods that may run in a forward of a class: those above, and what they call by name."""
    names = [name for name in comparisons.METHODS if _method(owner, name) is not None]
    for name in names:
        method = _method(owner, name)
        called = () if method is None else source.names_of(method.__code__)
        names += [each for each in called if each not in names and _method(owner, each) is not None]
    return names


def _method(owner: type, name: str) -> Optional[FunctionType]:
    """Return a method of a class below its decorators, as far as it is no part of torch."""
    level = next((level for level in owner.__mro__ if name in vars(level)), None)
    inner = None if level is None or module_of(level).startswith("torch.") else innermost(vars(level)[name])
    return inner if isinstance(inner, FunctionType) else None


def in_model(model: Any) -> Dict[type, Any]:
    """Return the classes in a model that draw for layers, for a list or for themselves, with a module of each."""
    peers = set(map(id, training.peers(model)))
    classes: Dict[type, Any] = {}
    for _, module in internals.named_modules(model):
        for level in type(module).__mro__:
            if level not in classes and _draws_here(level, module, id(module) in peers):
                classes[level] = module
    return classes


def check(owner: type, module: Any) -> None:
    """Raise unless the generators that a module holds are numpy's, and its rates numbers.

    Other generators are the program's own way to agree. A rate in a tensor could be read from a device only by waiting
    for it.

    Raises:
        PatchError: it draws from another generator, has another rate, or its source could not be read.
    """
    methods = drawing_methods(owner)
    if not methods:
        raise PatchError(_unproved(owner))
    for inner in (innermost(vars(owner)[name]) for name in methods):
        for each in comparisons.of(inner).decisions:
            place = f"{inner.__code__.co_filename}:{each.node.lineno}"
            names = each.number.generator.split(".") if each.number is not None and each.number.generator else []
            if names and not is_numpy_generator(held(module, names)):
                raise PatchError(f"it draws from its own generator, self.{'.'.join(names)} ({place})")
            for name in each.holders:
                if held(module, (name,)) is UNREADABLE:
                    raise PatchError(f"its layers, self.{name}, are {_PROPERTY} ({place})")
            path = each.rate.path if each.rate is not None else ()
            rate = held(module, path)
            if path and (rate is UNREADABLE or isinstance(rate, torch.Tensor)):
                kind = _PROPERTY if rate is UNREADABLE else "a tensor"
                raise PatchError(f"its rate, self.{'.'.join(path)}, is {kind} ({place})")


def _draws_here(level: type, module: Any, has_peers: bool) -> bool:
    drawn = [each for name in drawing_methods(level) for each in found_in(vars(level)[name]).decisions]
    return any(applies(each, module, has_peers) for each in drawn) if drawn else bool(_unproved(level))


def applies(decision: Decision, module: Any, has_peers: bool) -> bool:
    """Return whether a decision is about layers in this module: parts with parameters, or itself among its like."""
    if not decision.layers:
        return has_peers and not decision.is_part and _has_parameters(module)
    lists = [held(module, (name,)) for name in decision.holders] or [module]
    if any(each is UNREADABLE for each in lists):
        return _has_parameters(module)
    parts = [part for each in lists for part in (_parts(each) or [each])]
    return any(isinstance(part, torch.nn.Module) and _has_parameters(part) for part in parts)


def _parts(value: Any) -> List[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []


# Names that only a rate at which layers are skipped has: they tell that something is missed.
_RATES_BY_NAME = ("layerdrop", "layer_drop", "stochastic_depth")


def _unproved(level: type) -> str:
    """Return why nothing is known of a method that draws, and asks for such a rate; empty where there is none."""
    for inner in [innermost(vars(level)[name]) for name in comparisons.METHODS if name in vars(level)]:
        if not isinstance(inner, FunctionType) or not numbers.may_draw(inner):
            continue
        if any(map(_names_a_rate, source.names_of(inner.__code__))):
            try:
                tests = loops.tests(comparisons.of(inner).scope)
            except PatchError as error:
                return str(error)
            for test, parts in tests:
                if any(isinstance(part, ast.Attribute) and _names_a_rate(part.attr) for part in parts):
                    return f"{comparisons.NOT_UNIFORM} ({inner.__code__.co_filename}:{test.lineno})"
    return ""


def _names_a_rate(name: str) -> bool:
    return any(rate in name for rate in _RATES_BY_NAME)


def _has_parameters(module: Any) -> bool:
    return bool(internals.named_parameters(module))
