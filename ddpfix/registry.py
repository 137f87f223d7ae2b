"""What ddpfix has changed, and how to take exactly that back.

Every change is a record: the owner, the attribute, what was there, what is there now, and whether the owner had
inherited it. Undo removes our own layer wherever it sits. Another patcher may have wrapped ours since: then its layer
stays, and what it wraps becomes the original.
"""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Callable, Dict, List, Optional

import wrapt

_LOCK = threading.RLock()
_MISSING = object()


class PatchError(RuntimeError):
    """A patch cannot be put in place; the message says why. The engine reports it and leaves the toolkit as it was."""


@dataclass
class Record:
    """One changed attribute. ``was`` is the raw object from the owner's ``__dict__`` (a descriptor stays one)."""

    owner: Any
    attribute: str
    was: Any
    now: Any
    inherited: bool

    def undo(self) -> Optional[str]:
        """Take our layer away; returns what could not be done, in words."""
        current = vars(self.owner).get(self.attribute, _MISSING)
        if current is self.now:
            self._restore()
            return None
        if current is not _MISSING and _relink(current, self.now, self.was):
            return None
        where = getattr(self.owner, "__qualname__", getattr(self.owner, "__name__", self.owner))
        return f"{where}.{self.attribute} no longer holds our patch: somebody replaced it, and it stays as it is"

    def _restore(self) -> None:
        if self.inherited:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.was)


def _relink(layer: Any, ours: Any, was: Any) -> bool:
    """Find our layer below another patcher's, and put the original in its place."""
    seen = set()
    while layer is not None and id(layer) not in seen:
        seen.add(id(layer))
        cells = [c for c in getattr(layer, "__closure__", None) or () if _content(c) is ours]
        below = getattr(layer, "__wrapped__", None)
        if below is ours or cells:
            for cell in cells:
                cell.cell_contents = was
            if below is ours:
                layer.__wrapped__ = was
            return True
        layer = below
    return False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


class Site:
    """Where one patch does its work: each change goes through here, is recorded, and can be undone as a whole."""

    def __init__(self, patch: str, settings: Any = None) -> None:
        self.patch = patch
        self.settings = settings
        self.records: List[Record] = []
        self.notes: List[str] = []
        self.last_words: List[Callable[[], None]] = []

    def replace(self, owner: Any, attribute: str, now: Any) -> None:
        """Set ``owner.attribute``; ``now`` may be a descriptor."""
        with _LOCK:
            inherited = attribute not in vars(owner)
            was = self._raw(owner, attribute)
            setattr(owner, attribute, now)
            self.records.append(Record(owner, attribute, was, now, inherited))
        if isinstance(owner, ModuleType) and not inherited:
            self._rebind(owner, was, now)

    def once(self, owner: Any, attribute: str, wrapper: Callable[..., Any]) -> None:
        """Wrap something that is called once a run: ``wrapper(wrapped, instance, args, kwargs)``, by wrapt."""
        self.replace(owner, attribute, wrapt.FunctionWrapper(self._raw(owner, attribute), wrapper))

    def often(self, owner: Any, attribute: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Wrap a function that is called every step: ``make(stock)`` returns a plain closure, which pickles by name."""
        stock = self._raw(owner, attribute)
        if not isinstance(stock, FunctionType):
            raise PatchError(f"{attribute} of {owner!r} is a {type(stock).__name__}, not a plain function")
        self.replace(owner, attribute, functools.wraps(stock)(make(stock)))

    def at_undo(self, action: Callable[[], None]) -> None:
        """Have something called when this patch is undone."""
        self.last_words.append(action)

    def undo(self) -> List[str]:
        """Take back every change, the last one first; returns what could not be taken back, in words."""
        problems = []
        with _LOCK:
            while self.records:
                problem = self.records.pop().undo()
                if problem is not None:
                    problems.append(f"{self.patch}: {problem}")
            while self.last_words:
                self.last_words.pop()()
        return problems

    def _raw(self, owner: Any, attribute: str) -> Any:
        for level in getattr(owner, "__mro__", (owner,)):
            if attribute in vars(level):
                return vars(level)[attribute]
        raise PatchError(f"{owner!r} has no attribute {attribute}")

    def _rebind(self, home: ModuleType, was: Any, now: Any) -> None:
        """Other modules may hold the old object from a ``from x import f``: give them ours too."""
        for module, name in stale_copies(was, home):
            setattr(module, name, now)
            self.records.append(Record(module, name, was, now, False))


def stale_copies(old: Any, home: ModuleType) -> List[Any]:
    """(module, name) of every other imported module whose global ``name`` is the object ``old``."""
    found: List[Any] = []
    for module in list(sys.modules.values()):
        names: Dict[str, Any] = getattr(module, "__dict__", None) or {}
        if module is home or not isinstance(module, ModuleType):
            continue
        # The values of a lazy module are looked at in its dictionary only: an attribute look-up could import something.
        found.extend((module, name) for name, value in list(names.items()) if value is old)
    return found
