"""Loaders that cannot say how many batches they have end an epoch together on all ranks.

Each rank fetches one batch ahead and says so to the others, without waiting; the answer is looked at before that batch
is trained on, after a whole step. It is a few numbers, summed, whatever the number of ranks. What the numbers are, and
what they mean for the next step, is the toolkit's part.
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
        """The next batch of this rank, or :data:`NOTHING`. What is raised here, other ranks do not learn."""
        raise NotImplementedError

    def numbers(self) -> Sequence[int]:
        """What this rank says of the batch that it has just fetched; the ranks' numbers are summed."""
        raise NotImplementedError

    def goes_on(self, sums: List[int]) -> bool:
        """Whether another step is taken; the answer has to follow from ``sums``, which are the same on all ranks."""
        raise NotImplementedError

    def take(self) -> Any:
        """The batch of the step that is about to be taken."""
        return self.batch

    def ended(self) -> None:
        """No further step is taken. What is raised here ends the epoch with an error."""

    def say(self) -> PendingSum:
        return PendingSum(self.numbers(), self.group)

    def ahead(self) -> PendingSum:
        """Fetch the next batch; returns what the ranks are about to say of theirs."""
        self.batch = self.fetch()
        return self.say()

    def batches(self) -> Iterator[Any]:
        """As many batches as on all other ranks."""
        said = self.ahead()
        while self.goes_on(said.result()):
            batch, said = self.take(), self.ahead()
            self.steps += 1
            yield batch
        self.ended()
