"""Modules, read and changed without a question to them: a program's may be lazy, refuse, or count what is asked."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Dict, Mapping

from ddpfix import import_hook

_GLOBALS, _SPEC = vars(ModuleType)["__dict__"], type(sys.__spec__)


def is_module(found: object) -> bool:
    """Return whether this is a module; ``isinstance`` would ask a proxy for its class."""
    return issubclass(type(found), ModuleType)


def contents(owner: Any) -> Mapping[str, Any]:
    """Return the globals of a module as they are, or what is in a class."""
    return globals_of(owner) if is_module(owner) else vars(owner)


def globals_of(module: object) -> Dict[str, Any]:
    """Return the globals of a module as they are; none of what is no module."""
    found: Dict[str, Any] = _GLOBALS.__get__(module) if is_module(module) else {}
    return found or {}


def assign(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a class, or a global."""
    if is_module(owner):
        globals_of(owner)[name] = value
    else:
        setattr(owner, name, value)


def is_lazy(module: object) -> bool:
    """Return whether this module of :class:`importlib.util.LazyLoader` has not been executed."""
    kind = type(module)
    return (kind.__module__, kind.__qualname__) == ("importlib.util", "_LazyModule")


def initializing(name: str) -> bool:
    """Return whether a module is still being imported, or will be at its first use."""
    module = sys.modules.get(name)
    spec = globals_of(module).get("__spec__")
    is_marked = type(spec) is _SPEC and bool(getattr(spec, "_initializing", False))
    return is_marked or import_hook.is_running(name) or is_lazy(module)
