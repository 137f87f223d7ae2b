"""The iterations of DataLoaders that this process begins, and the batches that they give."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, Optional, Tuple

import torch

from ddpfix.patching import tracebacks
from ddpfix.uneven.loader import NOTHING, Held

from ..internals import loaders
from ..pipeline.step_count import Clocks
from . import even_lengths

# Modules between a loop and its batches.
_BETWEEN = ("ddpfix.", "torch.utils.data.")
# Callers that are looked at for one whose batches come from another rank.
_CALLERS = 8


class LoaderIterations(even_lengths.Synchronised):
    """The iterations of all loaders, and whether one is read again just now."""

    def __init__(self) -> None:
        # Another one as soon as something is looked after.
        super().__init__(Clocks())
        self.reads_again = False
        self._passes: weakref.WeakKeyDictionary[Any, LoaderIteration] = weakref.WeakKeyDictionary()
        # Whether all ranks end with the first one that has no more; None where nothing is looked after.
        self._stop: Optional[bool] = None
        self._held: Optional[Held] = None

    def begin_with(self, stop: bool, held: Held, clocks: Clocks) -> None:
        """Manage the iterations that begin from now on.

        Args:
            stop: whether all ranks end with the first one that has no more batches; else they read theirs again.
            held: the loaders that a toolkit's own patch looks after.
        """
        self._stop, self._held, self.forwards, self.over = stop, held, clocks, False

    def forget(self) -> None:
        """Manage no iteration any more (undo)."""
        self._stop = None
        self._passes.clear()
        self.forwards.forget()

    def begin(self, wrapped: Any, iterator: Any, args: Tuple[Any, ...], kwargs: Any) -> None:
        """Around what begins a pass: an iterator's constructor, and its ``_reset``, which persistent workers have."""
        wrapped(*args, **kwargs)
        loader = args[0] if args else kwargs.get("loader")
        if self.reads_again or self._stop is None or loader is None:
            return
        self._passes.pop(iterator, None)
        parts = (loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None))
        is_held = self._held is not None and any(part is not None and part in self._held for part in parts)
        if threading.current_thread() is threading.main_thread() and not is_held and _is_read_here():
            with contextlib.suppress(TypeError):
                self._passes[iterator] = LoaderIteration(self, loader, self._stop)

    def next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of ``__next__`` of the loader's iterators."""
        passes: Any = self._passes
        find, ref = passes.data.get, weakref.ref

        def __next__(self: Any) -> Any:
            found = find(ref(self))
            try:
                return original(self) if found is None or found.settled else found.next(self, original)
            except BaseException as error:
                tracebacks.hide(error)
                raise

        return __next__


def _is_read_here() -> bool:
    """Return whether the caller of :meth:`LoaderIterations.begin` reads batches of its own on this rank."""
    # accelerate's dispatcher reads on the first rank alone, and sends the others their parts.
    frame = sys._getframe(2)
    for _ in range(_CALLERS):
        if frame.f_code.co_name == "__iter__" and type(frame.f_locals.get("self")).__name__ == "DataLoaderDispatcher":
            return False
        if frame.f_back is None:
            break
        frame = frame.f_back
    return True


class LoaderIteration:
    """One pass over a loader.

    Args:
        stop: whether all ranks end with the first one that has no more batches.

    Attributes:
        settled: whether it gives what the loader gives.
    """

    def __init__(self, passes: LoaderIterations, loader: Any, stop: bool) -> None:
        self.settled = False
        self._passes = passes
        # A loader with persistent workers holds its iterator, and would never be given up.
        self._loader = weakref.ref(loader) if _is_persistent(loader) else lambda: loader
        self._stop = stop
        self._begun, self._given = passes.forwards.begun, 0
        self._batches: Optional[Iterator[Any]] = None

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the next batch."""
        if self._batches is None:
            self._batches = self._agreed(iterator, original)
        if self._batches is None:
            batch = original(iterator)
            self._given += 1
            return batch
        try:
            return next(self._batches)
        except even_lengths.IterationEndedError as left:
            self.settled = True
            if left.batch is NOTHING:
                raise StopIteration from None
            return left.batch

    def _agreed(self, iterator: Any, original: Callable[[Any], Any]) -> Optional[Iterator[Any]]:
        loader = self._loader()
        if loader is None or self._passes.forwards.begun == self._begun:
            return None
        source = Source(self._passes, loader, iterator, original)
        # The line that asks for a batch is the same in one loop on all ranks.
        frame: Any = sys._getframe(2)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
            frame = frame.f_back
        asker = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        found = even_lengths.batches(self._passes, source, loader, asker, self._given, self._stop)
        self.settled = found is None
        return found


class Source:
    """The rest of a pass; where it is begun again, the loader's batches from the beginning."""

    def __init__(self, passes: LoaderIterations, loader: Any, iterator: Any, original: Callable[[Any], Any]) -> None:
        self._passes, self._loader, self._original = passes, loader, original
        # Weak, because what is known of a pass lives as long as its iterator.
        self._first, self._other = weakref.ref(iterator), None
        self._ahead: Any = NOTHING
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
        if self._ahead is not NOTHING:
            batch, self._ahead = self._ahead, NOTHING
            return batch
        return self._original(self.iterator if self._other is None else self._other)

    def _begin_again(self) -> None:
        outer, self._passes.reads_again = self._passes.reads_again, True
        try:
            # A sampler draws its seed when it is asked for its first index; the next epoch is to get the same one as
            # on the ranks that have not read anything again.
            with _kept(self._loader):
                if _is_persistent(self._loader):
                    loaders.begin_again(self.iterator, self._loader)
                else:
                    self._other = loaders.another(self._loader)
                self._ahead = next(self, NOTHING)
        finally:
            self._passes.reads_again = outer


def _is_persistent(loader: Any) -> bool:
    """Return whether a loader keeps its workers, and so its iterator."""
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
