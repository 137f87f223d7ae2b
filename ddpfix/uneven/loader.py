"""The even loader: a loader that gives all ranks as many batches in an epoch.

Where each rank knows its number, the batches are counted (:class:`Counted`). Where one does not, each rank fetches one
batch ahead and sends a few numbers about it, without waiting (:class:`AgreedEpoch`). The sums over the ranks are read a
whole step later, before that batch is trained on.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence

from ddpfix import log
from ddpfix.patching.site import Site
from ddpfix.uneven.async_sum import PendingSum

# In the place of a batch: this rank has none.
NOTHING = object()


class Held(weakref.WeakSet):  # type: ignore[type-arg]  # Python 3.8 has no WeakSet[Any].
    """The loaders whose epochs a toolkit's own patch ends together on all ranks: nobody else is to."""

    def hold(self, loader: Any) -> None:
        """Have a toolkit's own patch manage this loader from now on."""
        # One to which no weak reference is possible is none of torch's.
        with contextlib.suppress(TypeError):
            self.add(loader)


def policy(site: Site, toolkit: str) -> str:
    """Return the value of the setting ``uneven``, or the one of this toolkit that comes nearest to it.

    Args:
        site: the site of the patch, which has the matrix's replacements for values that its toolkit does not have.
        toolkit: the toolkit's name, for the line that says that another value is taken. Nothing is logged where the
            user chose no value.
    """
    wanted: str = site.settings["uneven"]
    taken = site.instead.get(wanted, wanted)
    if taken != wanted and wanted != "auto":
        log.info(f"{toolkit} does not support uneven={wanted}: ddpfix uses uneven={taken}")
    return taken


def line(numbers: Sequence[int], target: int) -> str:
    """Return the line about ranks with different numbers of batches."""
    most, least = max(numbers), min(numbers)
    head = f"ranks have {least} to {most} batches: each trains {target} steps in this epoch"
    if target == least:
        cut = sum(number - target for number in numbers)
        return f"{head}, {cut} batches are left out (DDPFIX_UNEVEN=pad repeats some instead)"
    again = sum(target - number for number in numbers)
    return f"{head}, {again} batches are read again (DDPFIX_UNEVEN=stop ends at the shortest instead)"


class EvenLoader:
    """A loader that gives as many batches as those of the other ranks.

    Args:
        epoch: begins an epoch of the loader, and returns its batches.
        length: how many there are, if that is known.
    """

    def __init__(self, loader: Any, epoch: Callable[[Any], Iterator[Any]], length: Optional[int] = None) -> None:
        self.loader = loader
        self._epoch = epoch
        self._length = length

    def __len__(self) -> int:
        return len(self.loader) if self._length is None else self._length

    def __iter__(self) -> Iterator[Any]:
        return self._epoch(self.loader)


class Counted:
    """A known number of batches, the first ones again where there are fewer.

    Args:
        again: begins the loader once more.

    Attributes:
        left: how many are still to be given; not 0 at the end where the loader gave nothing the second time.
        is_first: whether the loader has not been begun once more.
    """

    def __init__(self, loader: Iterable[Any], number: int, again: Callable[[Any], Iterator[Any]] = iter) -> None:
        self.left, self.is_first = number, True
        self._loader, self._again = loader, again
        self._batches = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        batch = next(self._batches, NOTHING)
        if batch is NOTHING:
            self.is_first = False
            self._batches = self._again(self._loader)
            batch = next(self._batches)
        self.left -= 1
        return batch


class AgreedEpoch:
    """One epoch of this rank, of which a toolkit makes a subclass; an iterator of its batches.

    Args:
        group: a gloo group of all ranks.

    Attributes:
        batch: the batch that was fetched ahead, or :data:`NOTHING`.
        steps: how many batches have been given, on every rank.
    """

    def __init__(self, loader: Any, group: Any) -> None:
        from torch import distributed

        self.loader = loader
        self.group = group
        self.size: int = distributed.get_world_size()
        self.batch: Any = NOTHING
        self.steps = 0
        # The numbers of the batch that was fetched ahead; none where it could not be fetched.
        self._pending: Optional[PendingSum] = None
        # The batch of the step that is about to be taken, while the one after it is fetched.
        self._next: Any = NOTHING
        self._is_over = False

    def fetch(self) -> Any:
        """Return the next batch of this rank, or :data:`NOTHING`. Other ranks do not learn of an error raised here."""
        raise NotImplementedError

    def numbers(self) -> Sequence[int]:
        """Return the numbers of this rank for the batch that it has just fetched; they are summed over the ranks."""
        raise NotImplementedError

    def goes_on(self, sums: List[int]) -> bool:
        """Return whether another step is taken; this must depend on nothing but ``sums``, the same on all ranks."""
        raise NotImplementedError

    def take(self) -> Any:
        """Return the batch of the step that is about to be taken."""
        return self.batch

    def ended(self) -> None:
        """No further step is taken. An error that is raised here ends the epoch."""

    def send(self) -> PendingSum:
        """Send this rank's numbers; the result is the sums."""
        return PendingSum(self.numbers(), self.group)

    def received(self, pending: PendingSum) -> List[int]:
        """Return the sums; wait for the other ranks."""
        return pending.result()

    def fetch_next(self) -> PendingSum:
        """Fetch the next batch and send its numbers."""
        self.batch = self.fetch()
        return self.send()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next batch. After an error of the loader that the program catches, the next call tries again."""
        if self._next is NOTHING:
            self._decide()
        if self._pending is None:
            self._pending = self.fetch_next()
        batch, self._next = self._next, NOTHING
        self.steps += 1
        return batch

    def _decide(self) -> None:
        if self._is_over:
            raise StopIteration
        if self._pending is None:
            self._pending = self.fetch_next()
        if not self.goes_on(self.received(self._pending)):
            self._is_over = True
            self.ended()
            raise StopIteration
        self._next, self._pending = self.take(), None


class StreamEpoch(AgreedEpoch):
    """This rank's batches, where a loader cannot say how many it has; they are read again where the others have more.

    Ranks exchange how many have a batch that they have not trained on in this epoch, and how many have any. With
    ``stop`` the epoch ends where the first rank has no more. Otherwise it ends where the last one has no more, and the
    others read theirs again; a stream that gives nothing the second time ends the epoch on all ranks.

    Args:
        loader: this rank's batches; it is begun again where they are to be read again.
        stop: whether all ranks end with the first one that has no more.
    """

    def __init__(self, loader: Any, stop: bool, group: Any) -> None:
        super().__init__(loader, group)
        self.stop = stop
        self.fresh = True
        self.iterator = iter(loader)
        # Batches that were read again by all ranks, ranks that had more at the end, and ranks that had any.
        self.repeated = self.left = self.ready = 0

    def fetch(self) -> Any:
        return next(self.iterator, NOTHING)

    def numbers(self) -> Sequence[int]:
        have = self.batch is not NOTHING
        return [int(have and self.fresh), int(have)]

    def goes_on(self, sums: List[int]) -> bool:
        fresh, self.ready = sums
        if fresh and self.ready < self.size and not self.stop:
            # Some have just come to their end: who has to read again says whether that gives anything.
            self._begin_again()
            _, self.ready = self.received(self.send())
        if not fresh or self.ready < self.size:
            self.left = fresh
            return False
        self.repeated += self.size - fresh
        return True

    def _begin_again(self) -> None:
        if self.batch is NOTHING:
            self.fresh = False
            self.iterator = iter(self.loader)
            self.batch = self.fetch()

    def ended(self) -> None:
        if self.left and not self.steps:
            raise RuntimeError(
                f"ddpfix: {self.size - self.ready} of {self.size} ranks have no batch at all: there is too little data"
                " for so many ranks and workers, or it is split unevenly. Use fewer ranks."
            )
        if self.repeated:
            log.info(
                f"each rank trained {self.steps} steps in this epoch; {self.repeated} batches were read again on ranks"
                " with less data (DDPFIX_UNEVEN=stop ends at the shortest instead)"
            )
        if self.left:
            more = "the other ranks' loaders can be read only once"
            why = "DDPFIX_UNEVEN=pad repeats some instead" if self.stop else more
            log.info(
                f"each rank trained {self.steps} steps in this epoch; further batches of {self.left}"
                f" {'rank' if self.left == 1 else 'ranks'} are left out ({why})"
            )
