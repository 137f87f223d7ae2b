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
from importlib import import_module
from types import FunctionType, MethodType, ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import wrapt

_LOCK = threading.RLock()
_MISSING = object()
# The base of all of wrapt's proxies; its public name is not the same in all releases.
_PROXY: type = wrapt.FunctionWrapper.__mro__[-2]


class PatchError(RuntimeError):
    """A patch cannot be put in place; the message says why. The engine reports it and leaves the toolkit as it was."""


@dataclass(eq=False)
class Record:
    """One changed attribute. ``was`` is the raw object from the owner's ``__dict__`` (a descriptor stays one)."""

    owner: Any
    attribute: str
    was: Any
    now: Any
    inherited: bool

    def undo(self, taken: List[Tuple[Any, Any]]) -> Optional[str]:
        """Take our layer away; returns what could not be done, in words.

        Args:
            taken: (layer of another patcher, ours below it) of what has been taken away: copies share their layers.
        """
        with _LOCK:
            problem = self._take_away(taken)
            if self in _IN_PLACE:
                _IN_PLACE.remove(self)
            for record in _IN_PLACE:
                # A later layer of ours stands on this one: what it gives back one day is what this one gives back.
                if record.was is self.now:
                    record.was = self.was
                    record.inherited = self.inherited and record.owner is self.owner
        return problem

    def in_place(self) -> bool:
        """Whether our layer is where it was put, alone or below those of others."""
        current = vars(self.owner).get(self.attribute, _MISSING)
        return _is_layer(current, self.now) or any(_is_layer(layer, self.now) for layer in _layers(current))

    def _take_away(self, taken: List[Tuple[Any, Any]]) -> Optional[str]:
        current = vars(self.owner).get(self.attribute, _MISSING)
        if _is_layer(current, self.now):
            self._restore()
            return None
        if any(current is top and self.now is ours for top, ours in taken):
            return None
        if current is not _MISSING and _relink(current, self.now, self.was):
            taken.append((current, self.now))
            return None
        where = getattr(self.owner, "__qualname__", getattr(self.owner, "__name__", self.owner))
        return f"{where}.{self.attribute} no longer holds our patch: somebody replaced it, and it stays as it is"

    def _restore(self) -> None:
        if self.inherited:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.was)


# The records of all patches, oldest first: two patches may have changed the same attribute.
_IN_PLACE: List[Record] = []


def _is_layer(found: Any, ours: Any) -> bool:
    """Whether this is our layer, or the bound form of it that ``getattr(class, name).__wrapped__`` hands out."""
    return found is ours or (_is_proxy(found) and getattr(found, "_self_parent", None) is ours)


def _is_proxy(found: Any) -> bool:
    # isinstance is answered by what a proxy wraps.
    return issubclass(type(found), _PROXY)


def _relink(top: Any, ours: Any, was: Any) -> bool:
    """Find our layer below those of other patchers, and put the original in its place wherever they hold it."""
    found, waiting, seen = False, [top], set()
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        for below, put in _held(layer):
            if _is_layer(below, ours):
                put(was)
                found = True
            elif _is_proxy(below) or type(below) is FunctionType:
                waiting.append(below)
    return found


def _layers(top: Any) -> Iterator[Any]:
    """Everything that a wrapper calls, directly or through other wrappers."""
    waiting, seen = [top], set()
    while waiting:
        layer = waiting.pop()
        if id(layer) not in seen:
            seen.add(id(layer))
            yield layer
            if _is_proxy(layer) or type(layer) in (FunctionType, classmethod, staticmethod):
                waiting.extend(below for below, _ in _held(layer) if below is not None)


def _held(layer: Any) -> Iterator[Tuple[Any, Callable[[Any], None]]]:
    """What a wrapper calls, by all ways that wrappers use, each with the means to replace it."""
    if _is_proxy(layer):
        yield layer.__wrapped__, functools.partial(setattr, layer, "__wrapped__")
        yield getattr(layer, "_self_parent", None), lambda _: None
    elif type(layer) is FunctionType:
        for cell in layer.__closure__ or ():
            yield _content(cell), functools.partial(setattr, cell, "cell_contents")
        yield layer.__dict__.get("__wrapped__"), functools.partial(setattr, layer, "__wrapped__")
    else:
        # classmethod and staticmethod hold their function for good, so it is only looked into.
        yield getattr(layer, "__func__", None), lambda _: None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


class _BoundLayer(wrapt.BoundFunctionWrapper):  # type: ignore[misc, type-arg, unused-ignore]
    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._self_instance is None:
            return _named, (self.__module__, self.__qualname__)
        return getattr, (self._self_instance, self.__name__)


class _Layer(wrapt.FunctionWrapper):  # type: ignore[misc, type-arg, unused-ignore]
    """wrapt's wrapper refuses to be pickled and copied; a function goes by its name and is its own copy."""

    __bound_function_wrapper__ = _BoundLayer

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _named, (self.__module__, self.__qualname__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def _named(module: str, qualname: str) -> Any:
    """What a module holds under a dotted name: how patched functions are unpickled."""
    return functools.reduce(getattr, qualname.split("."), import_module(module))


def _bound_first(stock: Any) -> Callable[..., Any]:
    """Another patcher's method wrapper learns its instance when it is bound, not from the first argument."""

    @functools.wraps(stock)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return stock.__get__(self, type(self))(*args, **kwargs)

    return call


def _bound(wrapped: Any, instance: Any) -> Any:
    """A method is a bound one, also where it was called as ``Class.method(instance)``.

    For such a call wrapt hands out a partial object, whose signature, in its older releases, still has ``self``.
    """
    if instance is not None and issubclass(type(wrapped), wrapt.PartialCallableObjectProxy):
        return MethodType(wrapped.__wrapped__, instance)
    return wrapped


class Site:
    """Where one patch does its work: each change goes through here, is recorded, and can be undone as a whole."""

    def __init__(self, patch: str, settings: Any = None) -> None:
        self.patch = patch
        self.settings = settings
        self.records: List[Record] = []
        self.notes: List[str] = []
        self.last_words: List[Callable[[], object]] = []
        # Sites on which this patch stands together with others: what they have changed is undone with the last one.
        self.parts: List[Site] = []

    def in_force(self) -> List[Record]:
        """The records of this patch, and of those that it shares with others."""
        return [*self.records, *(record for part in self.parts for record in part.records)]

    def replace(self, owner: Any, attribute: str, now: Any) -> None:
        """Set ``owner.attribute``; ``now`` may be a descriptor."""
        with _LOCK:
            inherited = attribute not in vars(owner)
            was = self._raw(owner, attribute)
            setattr(owner, attribute, now)
            self._record(owner, attribute, was, now, inherited)
            if isinstance(owner, ModuleType):
                self._rebind(owner, was, now)

    def _record(self, *change: Any) -> None:
        record = Record(*change)
        self.records.append(record)
        _IN_PLACE.append(record)

    def once(self, owner: Any, attribute: str, wrapper: Callable[..., Any]) -> None:
        """Wrap something that is called once a run: ``wrapper(wrapped, instance, args, kwargs)``, by wrapt."""

        @functools.wraps(wrapper)
        def called(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            return wrapper(_bound(wrapped, instance), instance, args, kwargs)

        with _LOCK:
            self.replace(owner, attribute, _Layer(self._raw(owner, attribute), called))

    def often(self, owner: Any, attribute: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Wrap a function that is called every step: ``make(stock)`` returns a plain closure, which pickles by name."""
        with _LOCK:
            stock = self._raw(owner, attribute)
            if not isinstance(stock, FunctionType):
                raise PatchError(f"{attribute} of {owner!r} is a {type(stock).__name__}, not a plain function")
            called = _bound_first(stock) if _is_proxy(stock) and isinstance(owner, type) else stock
            self.replace(owner, attribute, functools.wraps(stock)(make(called)))

    def at_undo(self, action: Callable[[], object]) -> None:
        """Have something called when this patch is undone; it may return a list of what could not be taken back."""
        self.last_words.append(action)

    def undo(self) -> List[str]:
        """Take back every change, the last one first; returns what could not be taken back, in words."""
        problems: List[str] = []
        undone: List[Record] = []
        taken: List[Tuple[Any, Any]] = []
        with _LOCK:
            while self.records:
                undone.append(self.records.pop())
                problem = undone[-1].undo(taken)
                if problem is not None:
                    problems.append(f"{self.patch}: {problem}")
            _take_back_copies(undone)
            self.parts.clear()
            while self.last_words:
                try:
                    said = self.last_words.pop()()
                    problems.extend(said if isinstance(said, list) else ())
                except Exception as error:
                    problems.append(f"{self.patch}: {error!r} while it was undone")
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
            self._record(module, name, was, now, False)


def _take_back_copies(undone: List[Record]) -> None:
    """Modules that took our function by ``from x import f`` while it was in place get the original."""
    functions = {id(record.now): record for record in undone if isinstance(record.owner, ModuleType)}
    for record in functions.values():
        for module, name in stale_copies(record.now, record.owner):
            setattr(module, name, record.was)


def stale_copies(old: Any, home: ModuleType) -> List[Any]:
    """(module, name) of every other imported module whose global ``name`` is the object ``old``."""
    found: Dict[Any, Any] = {}
    for module in list(sys.modules.values()):
        names: Dict[str, Any] = getattr(module, "__dict__", None) or {}
        if module is home or not isinstance(module, ModuleType):
            continue
        # The values of a lazy module are looked at in its dictionary only: an attribute look-up could import something.
        # Nearly no module has a copy, and this is the fastest way to know.
        if id(old) not in map(id, list(names.values())):
            continue
        # By identity: a module may go by two names (a script that is __main__ and __mp_main__).
        found.update(((id(module), name), (module, name)) for name, value in list(names.items()) if value is old)
    return list(found.values())
