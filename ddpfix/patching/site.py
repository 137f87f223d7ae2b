"""Records what ddpfix has changed, and takes exactly that back.

Every change is a record: the owner, the attribute, what was there, what is there now, and whether the owner had
inherited it. Undo removes our own layer wherever it sits. Another patcher may have wrapped ours since: then its layer
stays, and what it wraps becomes the original.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from types import FunctionType, ModuleType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar

from ddpfix.modules import assign, contents
from ddpfix.patching.attribution import looks_like
from ddpfix.patching.layers import CHANGES, LOCK, Record, is_proxy, stale_copies, take_back_copies
from ddpfix.patching.wrapped import layer

T = TypeVar("T")


class Registry(List[T]):
    """Entries that are used later, in the order in which they were registered.

    Attributes:
        at: where its entries are used, written like a target of the matrix, or in words.
    """

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        # Several patches may register one item: it goes with the last of them.
        self._holders: List[T] = []

    def hold(self, item: T) -> None:
        """Put an item in, unless it is there, once more."""
        self._holders.append(item)
        if item not in self:
            self.append(item)

    def release(self, item: T) -> None:
        """Take an item out that was held as often as this."""
        if item in self._holders:
            self._holders.remove(item)
        if item not in self._holders and item in self:
            self.remove(item)


class PatchError(RuntimeError):
    """A patch cannot be put in place; the message says why. The engine reports it and leaves the toolkit as it was."""


class Kept:
    """Objects that live as long as an activation, one of each kind, for the parts of patches that share them."""

    def __init__(self) -> None:
        self._objects: Dict[Callable[[], Any], Any] = {}

    def of(self, kind: Callable[[], T]) -> T:
        """Return the object of this kind, which is a class or whatever makes one; made when it is first asked for."""
        with LOCK:
            if kind not in self._objects:
                self._objects[kind] = kind()
            found: T = self._objects[kind]
            return found

    def clear(self) -> None:
        """Drop all of them (undo); nothing is called: what has an end has it as an action of its patch's undo."""
        self._objects.clear()


class Site:
    """Where one patch does its work: each change goes through here, is recorded, and can be undone as a whole.

    Attributes:
        patch: its id.
        settings: the settings in force.
        activation: the engine, of which a patch may use ``kept``, ``facts``, ``verify``, ``tell_untested`` and
            ``report``; None where the patch was put in place by itself.
        active: whether it has not been undone.
        instead: values of its setting that the toolkit does not have, and the ones that are used in their place.
        examined: the hashes of the forwards that were examined, by the name that the patch has for them.
    """

    def __init__(
        self,
        patch: str,
        settings: Any = None,
        activation: Any = None,
        instead: Optional[Mapping[str, str]] = None,
        examined: Optional[Mapping[str, Sequence[str]]] = None,
    ) -> None:
        self.patch = patch
        self.settings = settings
        self.instead: Mapping[str, str] = instead or {}
        self.examined: Mapping[str, Sequence[str]] = examined or {}
        self.activation = activation
        self._kept: Kept = Kept() if activation is None else activation.kept
        self.active = True
        self.records: List[Record] = []
        # Where the entries that it has put into registries are used.
        self.registered: List[str] = []
        self._undo_actions: List[Callable[[], object]] = []
        # How many changes are not of an attribute; an action takes each of them back.
        self.others = 0
        # Sites that this patch shares with other patches: their changes are undone with the last of these patches.
        self.parts: List[Site] = []

    def in_force(self) -> List[Record]:
        """Return the records of this patch, and of the sites that it shares with other patches."""
        return [*self.records, *(record for part in self.parts for record in part.in_force())]

    def replace(self, owner: Any, attribute: str, now: Any) -> None:
        """Set ``owner.attribute``; ``now`` may be a descriptor."""
        with LOCK:
            inherited = attribute not in contents(owner)
            was = self._raw(owner, attribute)
            if was is now:
                # Another name of it was replaced before, and the search for copies has reached this one.
                return
            assign(owner, attribute, now)
            self._record(owner, attribute, was, now, inherited)
            if isinstance(owner, ModuleType):
                # Other modules may hold the old object from a ``from x import f``.
                with one_search():
                    CHANGES.replaced.append((self, owner, was, now))

    def _record(self, *change: Any) -> None:
        record = Record(*change)
        self.records.append(record)
        CHANGES.in_place.append(record)

    def wrap(self, owner: Any, attribute: str, wrapper: Callable[..., Any]) -> None:
        """Wrap something that is called once a run: ``wrapper(wrapped, instance, args, kwargs)``, as wrapt calls it."""
        with LOCK:
            self.replace(owner, attribute, layer(self._raw(owner, attribute), wrapper, owner))

    def wrap_hot(self, owner: Any, attribute: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Wrap a function that runs every step: ``make(original)`` returns a plain closure, which pickles by name."""
        with LOCK:
            original = self._raw(owner, attribute)
            if not isinstance(original, FunctionType):
                raise PatchError(f"{attribute} of {owner!r} is a {type(original).__name__}, not a plain function")
            called = original
            if is_proxy(original) and isinstance(owner, type):
                # Another patcher's method wrapper learns its instance when it is bound, not from the first argument.
                @functools.wraps(original)
                def called(self: Any, *args: Any, **kwargs: Any) -> Any:
                    return original.__get__(self, type(self))(*args, **kwargs)

            self.replace(owner, attribute, looks_like(original, make(called)))

    def register(self, registry: Registry[T], item: T) -> None:
        """Put an item into a registry, unless it is there, until the last patch is undone that has done so."""
        with LOCK:
            self.registered.append(registry.at)
            registry.hold(item)
            self._undo_actions.append(functools.partial(registry.release, item))

    def keep(self, kind: Callable[[], T]) -> T:
        """Return the one object of this kind in this activation, which holds what would else be a global of a module.

        It is for what several functions, targets or patches have in common. The next activation has another one.

        Args:
            kind: a class of the patch's own, without arguments; patches share an object by naming the same one.
        """
        return self._kept.of(kind)

    def at_undo(self, action: Callable[[], object]) -> None:
        """Have ``action`` called when this patch is undone; it may return a list of what could not be taken back."""
        self.others += 1
        self._undo_actions.append(action)

    def changes(self) -> int:
        """Return the number of changes to the toolkit so far; what is only registered is not counted."""
        return len(self.records) + len(self.parts) + self.others

    def places(self) -> List[str]:
        """Return the changed attributes, as ``module:attribute``, without the copies that other modules have."""
        return list(dict.fromkeys(record.place for record in self.in_force() if not record.copy))

    def undo(self) -> List[str]:
        """Take back every change, the last one first; returns a message for each that could not be taken back."""
        problems: List[str] = []
        undone: List[Record] = []
        taken: List[Tuple[Any, Any]] = []
        with LOCK:
            self.active = False
            while self.records:
                undone.append(self.records.pop())
                problem = undone[-1].undo(taken)
                if problem is not None:
                    problems.append(f"{self.patch}: {problem}")
            take_back_copies(undone)
            self.parts.clear()
            while self._undo_actions:
                try:
                    result = self._undo_actions.pop()()
                    problems.extend(result if isinstance(result, list) else ())
                except Exception as error:
                    problems.append(f"{self.patch}: {error!r} while it was undone")
        return problems

    def _raw(self, owner: Any, attribute: str) -> Any:
        found = self._held(owner, attribute)
        if any(found is was for _, _, was, _ in CHANGES.replaced):
            # This is a copy of what was replaced elsewhere, and has not been given the new one yet.
            _rebind_all()
            found = self._held(owner, attribute)
        return found

    def _held(self, owner: Any, attribute: str) -> Any:
        for level in owner.__mro__ if isinstance(owner, type) else (owner,):
            if attribute in contents(level):
                return contents(level)[attribute]
        raise PatchError(f"{owner!r} has no attribute {attribute}")


@contextlib.contextmanager
def one_search(fresh: Optional[str] = None) -> Iterator[None]:
    """Search other modules for what is replaced in this block once, at its end: a search takes milliseconds.

    Args:
        fresh: the module whose code has ended just now, if there is one.
    """
    with LOCK:
        CHANGES.searches += 1
        try:
            yield
        finally:
            CHANGES.searches -= 1
            if not CHANGES.searches:
                _rebind_all(fresh)


def _rebind_all(fresh: Optional[str] = None) -> None:
    at_home = all(home.__name__ == fresh for _, home, _, _ in CHANGES.replaced)
    replaced = [change for change in CHANGES.replaced if change[0].active]
    CHANGES.replaced.clear()
    homes = [(was, home) for _, home, was, _ in replaced]
    for held, module, name in stale_copies(homes, fresh if at_home else None):
        # In the order of the changes: what one patch has put there may have been replaced by the next one.
        for site, _, was, now in replaced:
            if held is was:
                assign(module, name, now)
                site._record(module, name, was, now, False, True)
                held = now


def locate(module: ModuleType, attribute: str, expects: Sequence[str]) -> Any:
    """Return the owner (module or class) of a function that a patch needs, after a check of its parameters.

    Raises:
        PatchError: it is not there, or lacks one of the parameters in ``expects``.
    """
    owner: Any = module
    *path, last = attribute.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    found = getattr(owner, last, None)
    if found is None:
        raise PatchError(f"{attribute} no longer exists")
    if expects:
        parameters = inspect.signature(found).parameters
        missing = [name for name in expects if name not in parameters]
        if missing:
            raise PatchError(f"{attribute} no longer takes {', '.join(missing)} (has {', '.join(parameters)})")
    return owner
