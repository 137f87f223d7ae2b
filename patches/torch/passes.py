"""The passes over DataLoaders that this process begins, and the batches that they give."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch

from ddpfix.ranks import lookahead, uneven

from . import together, trained

# Modules between a loop and its batches.
_BETWEEN = ("ddpfix.", "torch.utils.data.")
# Callers that are looked at for one whose batches come from another rank.
_CALLERS = 8
_PASSES: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
# Whether all ranks end with the first one that has no more; empty where nothing is looked after.
_STOP: List[bool] = []
# Not empty while a loader is read again.
_AGAIN: List[None] = []


def begin_with(stop: bool) -> None:
    """Look after the passes that begin from now on.

    Args:
        stop: whether all ranks end with the first one that has no more batches; else they read theirs again.
    """
    _STOP[:] = [stop]


def forget() -> None:
    """Look after no pass any more (undo)."""
    _STOP.clear()
    _PASSES.clear()
    trained.forget()
    together.forget()


def begin(wrapped: Any, iterator: Any, args: Tuple[Any, ...], kwargs: Any) -> None:
    """Around what begins a pass: the constructor of an iterator, and its ``_reset``, which persistent workers have."""
    wrapped(*args, **kwargs)
    loader = args[0] if args else kwargs.get("loader")
    if _AGAIN or not _STOP or loader is None:
        return
    _PASSES.pop(iterator, None)
    if threading.current_thread() is threading.main_thread() and _is_looked_after(loader):
        with contextlib.suppress(TypeError):
            _PASSES[iterator] = Pass(loader, _STOP[0])


def _is_looked_after(loader: Any) -> bool:
    parts = (loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None))
    if any(part is not None and uneven.is_held(part) for part in parts):
        return False
    # accelerate's dispatcher reads on the first rank alone, and sends the others their parts.
    frame = sys._getframe(2)
    for _ in range(_CALLERS):
        if frame.f_code.co_name == "__iter__" and type(frame.f_locals.get("self")).__name__ == "DataLoaderDispatcher":
            return False
        if frame.f_back is None:
            break
        frame = frame.f_back
    return True


def _asker(frame: Any) -> str:
    """The line that asks for a batch, the same in one loop on all ranks."""
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def next_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper of ``__next__`` of the loader's iterators."""
    passes: Any = _PASSES
    find, ref = passes.data.get, weakref.ref

    def __next__(self: Any) -> Any:
        found = find(ref(self))
        return original(self) if found is None or found.settled else found.next(self, original)

    return __next__


class Pass:
    """One pass over a loader.

    Args:
        loader: a DataLoader.
        stop: whether all ranks end with the first one that has no more batches.

    Attributes:
        settled: whether it gives what the loader gives.
    """

    def __init__(self, loader: Any, stop: bool) -> None:
        self.settled = False
        # A loader with persistent workers holds its iterator, and would never be given up.
        self._loader = weakref.ref(loader) if _is_persistent(loader) else lambda: loader
        self._stop = stop
        self._begun, self._given = trained.forwards(), 0
        self._batches: Optional[Iterator[Any]] = None

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """The next batch.

        Args:
            iterator: of the loader.
            original: its own ``__next__``.
        """
        if self._batches is None:
            self._batches = self._agreed(iterator, original)
        if self._batches is None:
            batch = original(iterator)
            self._given += 1
            return batch
        try:
            return next(self._batches)
        except together.LeftError as left:
            self.settled = True
            if left.batch is lookahead.NOTHING:
                raise StopIteration from None
            return left.batch

    def _agreed(self, iterator: Any, original: Callable[[Any], Any]) -> Optional[Iterator[Any]]:
        loader = self._loader()
        if loader is None or trained.forwards() == self._begun:
            return None
        source = Source(loader, iterator, original)
        found = together.batches(source, loader, _asker(sys._getframe(2)), self._given, self._stop)
        self.settled = found is None
        return found


class Source:
    """The rest of a pass; where it is begun again, the loader's batches from the beginning."""

    def __init__(self, loader: Any, iterator: Any, original: Callable[[Any], Any]) -> None:
        self._loader, self._original = loader, original
        # Weak, because what is known of a pass lives as long as its iterator.
        self._first, self._other = weakref.ref(iterator), None
        self._ahead: Any = lookahead.NOTHING
        self._is_begun = False

    @property
    def iterator(self) -> Any:
        """The loader's own iterator of this pass."""
        return self._first()

    def __iter__(self) -> Iterator[Any]:
        if self._is_begun:
            self._begin_again()
        self._is_begun = True
        return self

    def __next__(self) -> Any:
        if self._ahead is not lookahead.NOTHING:
            batch, self._ahead = self._ahead, lookahead.NOTHING
            return batch
        return self._original(self.iterator if self._other is None else self._other)

    def _begin_again(self) -> None:
        _AGAIN.append(None)
        try:
            # A sampler draws its seed when it is asked for its first index; the next epoch is to get the same one as
            # on the ranks that have not read anything again.
            with _kept(self._loader):
                if _is_persistent(self._loader):
                    self.iterator._reset(self._loader)
                else:
                    self._other = self._loader._get_iterator()
                self._ahead = next(self, lookahead.NOTHING)
        finally:
            _AGAIN.pop()


def _is_persistent(loader: Any) -> bool:
    """Whether a loader keeps its workers, and so its iterator."""
    return bool(loader.num_workers and getattr(loader, "persistent_workers", False))


@contextlib.contextmanager
def _kept(loader: Any) -> Iterator[None]:
    holders = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    held = [getattr(holder, "generator", None) for holder in holders]
    generators = [each for each in held if isinstance(each, torch.Generator)] + [torch.default_generator]
    states = [each.get_state() for each in generators]
    yield
    for generator, state in zip(generators, states):
        generator.set_state(state)
