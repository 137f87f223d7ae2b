"""What a module holds by a name, read at a time when the program itself would not read it."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Sequence

from ddpfix.layerdrop.numbers import DRAWS
from ddpfix.layerdrop.syntax import names_of

# Stands for what only a forward can read.
UNREADABLE = object()


def held(module: Any, path: Sequence[str]) -> Any:
    """Return what a module holds; None where it lacks it, UNREADABLE for a property that draws or that raises.

    Args:
        module: any module.
        path: names, of which each is an attribute of the one before.
    """
    value = module
    for name in path:
        getter = next((vars(level)[name] for level in type(value).__mro__ if name in vars(level)), None)
        function = getter.fget if isinstance(getter, property) else None
        if isinstance(function, FunctionType) and not DRAWS.isdisjoint(names_of(function.__code__)):
            # The program's random numbers are its own.
            return UNREADABLE
        try:
            value = getattr(value, name, None)
        except Exception:
            return UNREADABLE
    return value
