"""Records of changes, and how a layer of ddpfix is found and removed below the layers of other patchers."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import threading
from types import FunctionType, ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ddpfix.modules import assign, contents, globals_of
from ddpfix.user_code import module_of

LOCK = threading.RLock()
MISSING = object()


class Record:
    """One changed attribute.

    Args:
        owner: a module or a class.
        attribute: its name in the owner.
        was: the raw object from the owner's ``__dict__`` (a descriptor stays one).
        now: what stands there in its place.
        inherited: whether the owner had it from a base class.
        copy: whether it is a name that another module took from the owner by ``from x import f``.
    """

    def __init__(self, owner: Any, attribute: str, was: Any, now: Any, inherited: bool, copy: bool = False) -> None:
        self.owner, self.attribute, self.was, self.now = owner, attribute, was, now
        self.inherited, self.copy = inherited, copy

    @property
    def home(self) -> str:
        """The owner's name."""
        return str(globals_of(self.owner).get("__name__") or self.owner.__qualname__)

    @property
    def place(self) -> str:
        """``module:attribute``, as the matrix writes a target."""
        if isinstance(self.owner, ModuleType):
            return f"{self.home}:{self.attribute}"
        return f"{module_of(self.owner)}:{self.owner.__qualname__}.{self.attribute}"

    def undo(self, taken: List[Tuple[Any, Any]]) -> Optional[str]:
        """Take our layer away; returns what could not be done, as a message, or None.

        Args:
            taken: (layer of another patcher, ours below it) of what has been taken away: copies share their layers.
        """
        problem = None
        with LOCK:
            current = contents(self.owner).get(self.attribute, MISSING)
            if current is self.now:
                if self.inherited:
                    delattr(self.owner, self.attribute)
                else:
                    assign(self.owner, self.attribute, self.was)
            # Somebody else may have put the original back.
            elif current is not self.was and not any(current is top and self.now is ours for top, ours in taken):
                if current is not MISSING and relink(current, self.now, self.was):
                    taken.append((current, self.now))
                else:
                    here = f"{self.home}.{self.attribute}"
                    problem = f"{here} no longer holds ddpfix's patch: other code replaced it, and stays"
            later = CHANGES.in_place[CHANGES.in_place.index(self) :] if self in CHANGES.in_place else []
            for record in later:
                # A later layer of ours wraps this one: when it is undone, it restores what this one restores.
                if record.was is self.now:
                    record.was = self.was
                    record.inherited = self.inherited if record.owner is self.owner else record.inherited
            if later:
                CHANGES.in_place.remove(self)
        return problem

    def in_place(self) -> bool:
        """Return whether our layer is where it was put, alone or below the layers of others."""
        current = contents(self.owner).get(self.attribute, MISSING)
        return current is self.now or any(below is self.now for below, _ in _below(current))


class Changes:
    """The changes of all patches, which may lie on one another.

    Attributes:
        in_place: their records, oldest first.
        searches: how many blocks (``one_search``) are open, at whose end other modules are searched for copies.
        replaced: what is searched for then: (site, module, what was there, what is there now).
    """

    def __init__(self) -> None:
        self.in_place: List[Record] = []
        self.searches = 0
        self.replaced: List[Tuple[Any, ModuleType, Any, Any]] = []


CHANGES = Changes()


def is_outdated(owner: Any) -> bool:
    """Return whether a module or class has been replaced by another of its name since it was patched."""
    if isinstance(owner, ModuleType):
        return sys.modules.get(globals_of(owner)["__name__"], owner) is not owner
    found: Any = sys.modules.get(module_of(owner))
    for part in owner.__qualname__.split("."):
        found = getattr(found, part, None)
    return isinstance(found, type) and found is not owner


def is_proxy(found: Any) -> bool:
    """Return whether this is a proxy of wrapt, as other patchers put around functions."""
    wrapper = getattr(sys.modules.get("wrapt"), "FunctionWrapper", None)
    # isinstance would look at what the proxy wraps. The public name of their base is not the same in all releases.
    return wrapper is not None and issubclass(type(found), wrapper.__mro__[-2])


def relink(top: Any, ours: Any, was: Any) -> bool:
    """Find our layer below the layers of other patchers, and put the original in its place wherever they hold it."""
    places = [put for below, put in _below(top) if below is ours]
    for put in places:
        put(was)
    return bool(places)


def _below(top: Any) -> Iterator[Tuple[Any, Callable[[Any], None]]]:
    """Yield what a wrapper calls, directly or through other wrappers, each with a function to replace it."""
    waiting, seen = [top], set()
    while waiting:
        layer = waiting.pop()
        if id(layer) not in seen:
            seen.add(id(layer))
            for below, put in _held(layer):
                yield below, put
                if is_proxy(below) or type(below) in (FunctionType, classmethod, staticmethod):
                    waiting.append(below)


def _held(layer: Any) -> Iterator[Tuple[Any, Callable[[Any], None]]]:
    """Yield the callables that a wrapper holds, in every way that wrappers do, each with a function to replace it."""
    if is_proxy(layer):
        yield layer.__wrapped__, functools.partial(setattr, layer, "__wrapped__")
        yield getattr(layer, "_self_parent", None), lambda _: None
    elif type(layer) is FunctionType:
        for cell in layer.__closure__ or ():
            # An empty cell has no content.
            with contextlib.suppress(ValueError):
                yield cell.cell_contents, functools.partial(setattr, cell, "cell_contents")
        yield layer.__dict__.get("__wrapped__"), functools.partial(setattr, layer, "__wrapped__")
        # A wrapper in a script may keep what it calls in a global. All layers are wrappers.
        for name in layer.__code__.co_names:
            below = layer.__globals__.get(name)
            if is_proxy(below) or (type(below) is FunctionType and "__wrapped__" in below.__dict__):
                yield below, functools.partial(operator.setitem, layer.__globals__, name)
    else:
        # The function in a classmethod or staticmethod cannot be replaced, so it is only searched.
        yield getattr(layer, "__func__", None), lambda _: None


def take_back_copies(undone: List[Record]) -> None:
    """Modules that took our function by ``from x import f`` while it was in place get the original."""
    functions = {id(record.now): record for record in undone if isinstance(record.owner, ModuleType)}
    for old, module, name in stale_copies([(record.now, record.owner) for record in functions.values()]):
        assign(module, name, functions[id(old)].was)


def stale_copies(
    originals: Sequence[Tuple[Any, ModuleType]], fresh: Optional[str] = None
) -> List[Tuple[Any, ModuleType, str]]:
    """Return the places of copies, in other imported modules, of objects defined elsewhere, under any name.

    Args:
        originals: (object, the module that defines it).
        fresh: the module whose code has ended just now, if it defines them all: no module that was imported before it
            holds a copy, and the one that waits for its import takes what is there then.

    Returns:
        (object, module, name of its global).
    """
    copies: Dict[Any, Tuple[Any, ModuleType, str]] = {}
    homes = {id(old): (old, home) for old, home in originals}
    modules = dict(sys.modules) if homes else {}
    for module in [*modules.values()][[*modules].index(fresh) if fresh in modules else 0 :]:
        names = globals_of(module)
        # Nearly no module has a copy, and this is the fastest way to know.
        if homes.keys().isdisjoint(map(id, list(names.values()))):
            continue
        for name, value in list(names.items()):
            old, home = homes.get(id(value), (None, module))
            # By identity: a module may go by two names (a script that is __main__ and __mp_main__).
            if module is not home and value is old:
                copies[id(module), name] = (old, module, name)
    return list(copies.values())
