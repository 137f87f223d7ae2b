"""Checks of what a patch relies on in a function of a toolkit, made before anything is changed."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any, Sequence

from ddpfix.patching.site import PatchError


def code_names(owner: Any, name: str) -> Sequence[str]:
    """Return the names that a method of ``owner`` itself looks up, and its texts, whatever has been wrapped around it.

    Raises:
        PatchError: it is not there, or not a plain function.
    """
    function = inspect.unwrap(vars(owner)[name]) if name in vars(owner) else None
    if not isinstance(function, FunctionType):
        raise PatchError(f"{_called(owner)}.{name} does not exist, or is not a plain function")
    code = function.__code__
    return [*code.co_names, *(text for text in code.co_consts if isinstance(text, str))]


def needs_names(owner: Any, name: str, *expected: str) -> None:
    """Refuse a method that no longer looks up the names that a patch relies on.

    Raises:
        PatchError: a name is missing; the message says which.
    """
    used = code_names(owner, name)
    missing = [word for word in expected if word not in used]
    if missing:
        raise PatchError(f"{_called(owner)}.{name} no longer uses {', '.join(missing)}")


def _called(owner: Any) -> str:
    """Return the name of a class or of a module."""
    return str(getattr(owner, "__qualname__", owner.__name__))
