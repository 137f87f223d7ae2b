"""What ddpfix has changed, and how to take exactly that back.

Every change is a record: the owner, the attribute, what was there, what is there now, and whether the owner had
inherited it. Undo removes our own layer wherever it sits. Another patcher may have wrapped ours since: then its layer
stays, and what it wraps becomes the original.
"""

from __future__ import annotations

import contextlib
import functools
from importlib import import_module
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar

import wrapt

from ddpfix.patching.layers import IN_PLACE, LOCK, Record, is_proxy, stale_copies, take_back_copies

if TYPE_CHECKING:
    # Python 3.8 has it, and nothing asks for it at run time.
    from typing import Protocol
else:
    Protocol = object


T = TypeVar("T")


class PatchError(RuntimeError):
    """A patch cannot be put in place; the message says why. The engine reports it and leaves the toolkit as it was."""


class Registry(List[T]):
    """What is acted on later, in the order in which it was registered.

    Attributes:
        at: where its entries are acted on, written like a target of the matrix, or in words.
    """

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at


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


class Activation(Protocol):
    """What a patch may ask about the activation that it is a part of."""

    def facts(self) -> Dict[str, str]:
        """What has to be equal on every rank."""

    def verify(self) -> List[str]:
        """What is not in place any more, in words."""

    def summary(self) -> str:
        """What was done, in one line."""


class Site:
    """Where one patch does its work: each change goes through here, is recorded, and can be undone as a whole.

    Attributes:
        patch: its id.
        settings: those in force.
        activation: see :class:`Activation`.
        active: whether it has not been undone.
        instead: values of its setting that the toolkit does not have, and what is done in their place.
    """

    def __init__(
        self,
        patch: str,
        settings: Any = None,
        activation: Optional[Activation] = None,
        instead: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.patch = patch
        self.settings = settings
        self.instead: Mapping[str, str] = instead or {}
        # What this patch may know of all others; None where it was put in place by itself.
        self.activation = activation
        self.active = True
        self.records: List[Record] = []
        # Where what it has put into registries is acted on.
        self.registered: List[str] = []
        self._last_words: List[Callable[[], object]] = []
        # How many changes are no attribute, and are taken back by an action.
        self.others = 0
        # Sites on which this patch stands together with others: what they have changed is undone with the last one.
        self.parts: List[Site] = []

    def in_force(self) -> List[Record]:
        """The records of this patch, and of those that it shares with others."""
        return [*self.records, *(record for part in self.parts for record in part.records)]

    def replace(self, owner: Any, attribute: str, now: Any) -> None:
        """Set ``owner.attribute``; ``now`` may be a descriptor."""
        with LOCK:
            inherited = attribute not in vars(owner)
            was = self._raw(owner, attribute)
            setattr(owner, attribute, now)
            self._record(owner, attribute, was, now, inherited)
            if isinstance(owner, ModuleType):
                self._rebind(owner, was, now)

    def _record(self, *change: Any) -> None:
        record = Record(*change)
        self.records.append(record)
        IN_PLACE.append(record)

    def wrap(self, owner: Any, attribute: str, wrapper: Callable[..., Any]) -> None:
        """Wrap something that is called once a run: ``wrapper(wrapped, instance, args, kwargs)``, by wrapt."""

        @functools.wraps(wrapper)
        def called(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            return wrapper(_bound(wrapped, instance), instance, args, kwargs)

        with LOCK:
            self.replace(owner, attribute, _Layer(self._raw(owner, attribute), called))

    def wrap_hot(self, owner: Any, attribute: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Wrap a function that is called every step: ``make(stock)`` returns a plain closure, which pickles by name."""
        with LOCK:
            stock = self._raw(owner, attribute)
            if not isinstance(stock, FunctionType):
                raise PatchError(f"{attribute} of {owner!r} is a {type(stock).__name__}, not a plain function")
            called = _bound_first(stock) if is_proxy(stock) and isinstance(owner, type) else stock
            self.replace(owner, attribute, functools.wraps(stock)(make(called)))

    def register(self, registry: Registry[T], item: T) -> None:
        """Put an item into a registry, unless it is there, until this patch is undone."""
        with LOCK:
            self.registered.append(registry.at)
            if item not in registry:
                registry.append(item)
                self._last_words.append(functools.partial(_discard, registry, item))

    def at_undo(self, action: Callable[[], object]) -> None:
        """Have something called when this patch is undone; it may return a list of what could not be taken back."""
        self.others += 1
        self._last_words.append(action)

    def changes(self) -> int:
        """How much of the toolkit is changed by now; what is registered only is not counted."""
        return len(self.records) + len(self.parts) + self.others

    def places(self) -> List[str]:
        """What was changed, as ``module:attribute``; copies that other modules have of it are not among them."""
        return list(dict.fromkeys(record.place for record in self.in_force() if not record.copy))

    def undo(self) -> List[str]:
        """Take back every change, the last one first; returns what could not be taken back, in words."""
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
            while self._last_words:
                try:
                    said = self._last_words.pop()()
                    problems.extend(said if isinstance(said, list) else ())
                except Exception as error:
                    problems.append(f"{self.patch}: {error!r} while it was undone")
        return problems

    def _raw(self, owner: Any, attribute: str) -> Any:
        found = self._held(owner, attribute)
        if any(found is was for _, _, was, _ in _SOUGHT):
            # This is a copy of what was replaced elsewhere, and has not been given the new one yet.
            _rebind_all()
            found = self._held(owner, attribute)
        return found

    def _held(self, owner: Any, attribute: str) -> Any:
        for level in getattr(owner, "__mro__", (owner,)):
            if attribute in vars(level):
                return vars(level)[attribute]
        raise PatchError(f"{owner!r} has no attribute {attribute}")

    def _rebind(self, home: ModuleType, was: Any, now: Any) -> None:
        """Other modules may hold the old object from a ``from x import f``: give them ours too."""
        with one_search():
            _SOUGHT.append((self, home, was, now))


# What was replaced in a module while a search is open: (site, module, what was there, what is there now).
_SOUGHT: List[Tuple[Site, ModuleType, Any, Any]] = []
_OPEN: List[None] = []


@contextlib.contextmanager
def one_search(fresh: Optional[str] = None) -> Iterator[None]:
    """What is replaced in here is looked for in other modules once, at the end: looking takes milliseconds.

    Args:
        fresh: the module whose code has ended just now, if there is one.
    """
    with LOCK:
        _OPEN.append(None)
        try:
            yield
        finally:
            _OPEN.pop()
            if not _OPEN:
                _rebind_all(fresh)


def _rebind_all(fresh: Optional[str] = None) -> None:
    at_home = all(home.__name__ == fresh for _, home, _, _ in _SOUGHT)
    sought = {id(was): (site, now) for site, _, was, now in _SOUGHT if site.active}
    homes = [(was, home) for site, home, was, _ in _SOUGHT if site.active]
    _SOUGHT.clear()
    for old, module, name in stale_copies(homes, fresh if at_home else None):
        # What one patch has put there may have been replaced by the next one.
        while id(old) in sought:
            site, now = sought[id(old)]
            setattr(module, name, now)
            site._record(module, name, old, now, False, True)
            old = now


def _discard(those: List[Any], item: Any) -> None:
    if item in those:
        those.remove(item)
