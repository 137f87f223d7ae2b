"""Temporary patches: for the length of a call, a name holds another value, and afterwards the old one again."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Any, Dict, Iterator, TypeVar

from ddpfix import log
from ddpfix.patching.site import Site

_Value = TypeVar("_Value")


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While this lasts, ``owner`` (an instance, a class, a module) has ``value`` as its own attribute ``name``.

    An attribute of its class is hidden, and visible again afterwards. Unlike ``Site.replace``, this leaves
    copies in other modules alone, and nobody else may wrap it in the meantime.
    """
    had, was = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, was)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def assigned(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """While this lasts, ``variable`` has ``value``: code that is called from here can read it."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextlib.contextmanager
def patched(parent: Site) -> Iterator[Site]:
    """A site of the same patch whose changes are undone when this ends."""
    site = Site(parent.patch, parent.settings, parent.activation)
    try:
        yield site
    finally:
        for problem in site.undo():
            log.warning(problem)


class LookAlike:
    """Stands for a module (or any object): a few names have other values, all others are the original's.

    Args:
        original: the module.
        names: name -> its value instead.
    """

    def __init__(self, original: Any, names: Dict[str, Any]) -> None:
        self.__dict__.update(names)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        if name == "_original":
            # A copy that is being made (pickle, copy) has it not yet.
            raise AttributeError(name)
        return getattr(self._original, name)
