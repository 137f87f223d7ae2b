"""What a process reads from its DataLoaders: the order of the sampler, and the first batches.

The sampler is looked at while the loader's own iterator asks it for the next indices, and a batch when it is handed
out, so nothing is read earlier or twice, and no random number is drawn. Each pass over a loader is a
:class:`Reading`, which takes notes of its first batches and none later.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple

from . import contents

# The end of a line about what was read.
OFF = "(DDPFIX_TORCH_SAMPLES=0 does not look)"
# Batches of a pass of which the indices are noted, and those whose contents are looked at.
MOST = 32
_LOOKS = (1, 2, 3, 4, 8, 16, 32)
# Passes of a loader that are looked into, and loaders: it takes time, and is done where a run begins.
_PASSES, _LOADERS = 2, 16
# Forwards that belong to the first batches, which are all looked at: some loops read one batch ahead.
_FED = 4


class Reading:
    """One pass over a loader.

    Args:
        loader: a DataLoader.
        iterator: its own iterator.
        is_looked_at: whether the contents of the batches are looked at.

    Attributes:
        loader: a weak reference.
        iterator: a weak reference.
        data: the name of the dataset's class.
        indices: a number for the indices of each of the first batches; None where they cannot be compared.
        epoch: the number of the epoch that the sampler had when the pass began; None for one that has none.
        given: how many batches were handed out.
        seen: digests of the contents of some of the first batches.
        ended: whether the loader came to its end.
        trained: whether a wrapped model was trained while this was the latest pass.
        compared: whether it was looked at whether other ranks have to know of it.
        unknown: whether contents are not looked at, or could not be.
        settled: whether nothing more is to be found out from it.
        whole: whether the wrapped model was given what the loader had given, and not a part of it; None: not known.
    """

    def __init__(self, loader: Any, iterator: Any, is_looked_at: bool) -> None:
        self.loader, self.iterator = weakref.ref(loader), weakref.ref(iterator)
        self.data = type(loader.dataset).__name__
        sampler = shuffling(loader)
        self._sampler = None if sampler is None else weakref.ref(sampler)
        self.epoch: Optional[int] = getattr(sampler, "epoch", None)
        self.indices: List[Optional[int]] = []
        self.given = 0
        self.seen: List[str] = []
        self.ended = self.replaced = self.settled = self.trained = self.compared = False
        self.unknown = not is_looked_at
        self.whole: Optional[bool] = None
        self._shapes: Set[Tuple[int, ...]] = set()

    @property
    def sampler(self) -> Any:
        """The sampler that shuffles by epoch, or None."""
        return None if self._sampler is None else self._sampler()

    def drew(self, indices: Any) -> None:
        if len(self.indices) < MOST and (not self.unknown or self._sampler is not None):
            self.indices.append(contents.indices(indices) if _any_index(indices) else 0)

    def gave(self, batch: Any) -> None:
        self.given += 1
        if self.given in _LOOKS and not self.unknown:
            try:
                self.seen.append(contents.digest(batch))
                self._shapes.update(contents.shapes(batch))
            except Exception:
                # A batch of a class that cannot be looked into; what such a class raises is not the user's error.
                self.unknown = True

    def fed(self, inputs: Any) -> None:
        """Called with what a wrapped model is given in training while this is the latest pass."""
        self.trained = True
        if self.given > _FED or self.unknown or self.whole is False:
            return
        try:
            shapes = contents.shapes(inputs)
        except Exception:
            self.unknown = True
            return
        if shapes:
            self.whole = all(_is_whole(shape, self._shapes) for shape in shapes)

    def is_over(self) -> bool:
        """Whether all is known of it that will be: it has gone far enough, or to its end, or was given up."""
        return self.given >= MOST or self.ended or self.replaced or self.iterator() is None

    def order(self) -> List[Optional[int]]:
        """The numbers of the batches that were handed out, and not those that workers were only asked for."""
        return self.indices[: self.given]


def _any_index(indices: Any) -> bool:
    """Whether a sampler has given anything: iterable datasets have one that gives None."""
    return indices is not None and not (isinstance(indices, list) and indices and indices[0] is None)


def _is_whole(shape: Sequence[int], given: Set[Tuple[int, ...]]) -> bool:
    """Whether a tensor of this shape is a batch as the loader gave it, or may be features of all its samples.

    A part of a batch has fewer samples, or is smaller in another dimension (sequence parallelism, a cut-out); prompts
    to which each rank has added an answer of its own are longer.
    """
    if tuple(shape) in given:
        return True
    return not any(len(shape) == len(other) for other in given) and any(shape[0] == other[0] for other in given)


def shuffling(loader: Any) -> Any:
    """The sampler below a loader that shuffles in an order that depends on its epoch; None where there is none."""
    found = _below(loader)
    for _ in range(4):
        if callable(getattr(found, "set_epoch", None)) and isinstance(getattr(found, "epoch", None), int):
            return found if getattr(found, "shuffle", None) is True else None
        found = _below(found)
    return None


def _below(holder: Any) -> Any:
    found = getattr(holder, "batch_sampler", None)
    return getattr(holder, "sampler", None) if found is None else found


class Readings:
    """The passes over all loaders that take notes."""

    def __init__(self) -> None:
        self._readings: weakref.WeakKeyDictionary[Any, Reading] = weakref.WeakKeyDictionary()
        self._local = threading.local()
        # How many passes over a loader were looked into, and over how many loaders, those that are gone included.
        self._looked: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._loaders = 0
        # Whether there is anything to take notes for: a model on several ranks.
        self._needed = False

    def latest(self) -> Optional[Reading]:
        """The pass from which this thread has asked for a batch last."""
        found: Optional[Reading] = getattr(self._local, "reading", None)
        return found

    def need(self) -> None:
        """Take notes of the passes that begin from now on."""
        self._needed = True

    def forget(self) -> None:
        """Take no notes any more (undo)."""
        self._needed = False
        self._readings.clear()
        self._looked.clear()
        self._local.__dict__.clear()

    def begin(self, wrapped: Any, iterator: Any, args: Tuple[Any, ...], kwargs: Any) -> None:
        """Around what begins a pass: the constructor of an iterator."""
        wrapped(*args, **kwargs)
        loader = args[0] if args else kwargs.get("loader")
        if loader is not None:
            self._begin(iterator, loader)

    def begin_again(self, wrapped: Any, iterator: Any, args: Tuple[Any, ...], kwargs: Any) -> None:
        """Around ``_reset`` of an iterator with workers, which asks for the first indices of a pass."""
        loader = args[0] if args else kwargs.get("loader")
        # The constructor calls it, too.
        is_first = args[1] if len(args) > 1 else kwargs.get("first_iter", False)
        if loader is not None and not is_first:
            self._begin(iterator, loader)
        wrapped(*args, **kwargs)

    def _begin(self, iterator: Any, loader: Any) -> None:
        before = self._readings.get(iterator)
        if before is not None:
            before.replaced = True
        if self._needed:
            # A loader of a user's own to which no weak reference is possible has none.
            with contextlib.suppress(Exception):
                self._readings[iterator] = Reading(loader, iterator, self._is_looked_at(loader))

    def _is_looked_at(self, loader: Any) -> bool:
        """Whether the contents of a new pass are looked at."""
        passes = self._looked.get(loader, 0)
        if passes == _PASSES or (not passes and self._loaders == _LOADERS):
            return False
        if not passes:
            self._loaders += 1
        self._looked[loader] = passes + 1
        return True

    def next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of ``_next_index`` of the loader's iterators."""
        readings: Any = self._readings
        find, ref = readings.data.get, weakref.ref

        def _next_index(self: Any) -> Any:
            found = original(self)
            reading = find(ref(self))
            if reading is not None:
                reading.drew(found)
            return found

        return _next_index

    def next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of ``__next__`` of the loader's iterators."""
        readings: Any = self._readings
        find, ref, local = readings.data.get, weakref.ref, self._local

        def __next__(self: Any) -> Any:
            reading = find(ref(self))
            if reading is None:
                return original(self)
            # Also at the end: a loop that reads one batch ahead trains on the last one after that.
            local.reading = reading
            try:
                batch = original(self)
            except StopIteration:
                reading.ended = True
                raise
            reading.gave(batch)
            return batch

        return __next__
