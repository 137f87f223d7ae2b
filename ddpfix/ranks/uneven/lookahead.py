"""The one-batch-ahead loader: loaders without a length end an epoch together on all ranks.

Each rank fetches one batch ahead and sends a few numbers about it, without waiting. The sums over the ranks are read a
whole step later, before that batch is trained on. The toolkit decides what the numbers are, and what they mean for the
next step.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Sequence

from ddpfix.ranks.uneven.async_sum import PendingSum

# In the place of a batch: this rank has none.
NOTHING = object()


class Epoch:
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

    def batches(self) -> Iterator[Any]:
        """As many batches as on all other ranks."""
        return self

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
