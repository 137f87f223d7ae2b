"""The one-batch-ahead loader: loaders without a length end an epoch together on all ranks.

Each rank fetches one batch ahead and sends a few numbers about it, without waiting. The sums over the ranks are read a
whole step later, before that batch is trained on. The toolkit decides what the numbers are, and what they mean for the
next step.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence

from ddpfix.ranks.async_sum import PendingSum

# In the place of a batch: this rank has none.
NOTHING = object()


class Epoch:
    """One epoch of this rank, of which a toolkit makes a subclass.

    Args:
        loader: this rank's batches.
        group: a gloo group of all ranks.

    Attributes:
        size: how many ranks there are.
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

    def fetch(self) -> Any:
        """The next batch of this rank, or :data:`NOTHING`. Other ranks do not learn of an error that is raised here."""
        raise NotImplementedError

    def numbers(self) -> Sequence[int]:
        """The numbers of this rank for the batch that it has just fetched; they are summed over the ranks."""
        raise NotImplementedError

    def goes_on(self, sums: List[int]) -> bool:
        """Whether another step is taken; this must depend on nothing but ``sums``, which are the same on all ranks."""
        raise NotImplementedError

    def take(self) -> Any:
        """The batch of the step that is about to be taken."""
        return self.batch

    def ended(self) -> None:
        """No further step is taken. An error that is raised here ends the epoch."""

    def send(self) -> PendingSum:
        """Send this rank's numbers; the result is the sums."""
        return PendingSum(self.numbers(), self.group)

    def fetch_next(self) -> PendingSum:
        """Fetch the next batch and send its numbers."""
        self.batch = self.fetch()
        return self.send()

    def batches(self) -> Iterator[Any]:
        """As many batches as on all other ranks."""
        pending = self.fetch_next()
        while self.goes_on(pending.result()):
            batch, pending = self.take(), self.fetch_next()
            self.steps += 1
            yield batch
        self.ended()
