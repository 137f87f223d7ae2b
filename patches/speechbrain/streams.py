"""Ranks whose loaders cannot say how many batches they have end an epoch together.

Each rank fetches one batch ahead and says so to the others, without waiting; the answer is looked at before that batch
is trained on, after a whole step. It is two numbers, summed, whatever the number of ranks.
"""

from __future__ import annotations

from typing import Any, Iterator

from torch import distributed

from ddpfix import log
from ddpfix.ranks.async_sum import PendingSum

_NOTHING = object()


class Agreed:
    """A loader that gives as many batches as those of the other ranks.

    With ``stop`` that is until the first rank has no more. Otherwise it is until the last one has no more, and the
    others read theirs again; a stream that gives nothing the second time ends the epoch on all ranks.
    """

    def __init__(self, loader: Any, stop: bool, group: Any) -> None:
        self.loader = loader
        self.stop = stop
        self.group = group

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        own = _Own(self.loader, self.group)
        size, steps, repeated, left = distributed.get_world_size(), 0, 0, 0
        said = own.ahead()
        while True:
            fresh, ready = said.result()
            if fresh and ready < size and not self.stop:
                # Some have just come to their end: who has to read again says whether that gives anything.
                _, ready = own.begin_again().result()
            if not fresh or ready < size:
                left = fresh
                break
            steps, repeated = steps + 1, repeated + size - fresh
            batch, said = own.batch, own.ahead()
            yield batch
        if left and not steps:
            raise RuntimeError(
                f"ddpfix: {size - ready} of {size} ranks have no batch at all: there is less data than ranks, or it is"
                " not shared out evenly among ranks (and their workers). Use fewer ranks."
            )
        _tell(self.stop, steps, repeated, left)


class _Own:
    """This rank's batches, one ahead."""

    def __init__(self, loader: Any, group: Any) -> None:
        self.loader = loader
        self.group = group
        self.fresh = True
        self.iterator = iter(loader)
        self.batch: Any = _NOTHING

    def ahead(self) -> PendingSum:
        """Fetch the next batch; returns what the ranks are about to say of theirs."""
        self.batch = next(self.iterator, _NOTHING)
        return self._say()

    def begin_again(self) -> PendingSum:
        """The same from the beginning, where there is no next batch."""
        if self.batch is _NOTHING:
            self.fresh = False
            self.iterator = iter(self.loader)
            self.batch = next(self.iterator, _NOTHING)
        return self._say()

    def _say(self) -> PendingSum:
        """How many ranks have a batch that they have not trained on in this epoch, and how many have any."""
        have = self.batch is not _NOTHING
        return PendingSum([int(have and self.fresh), int(have)], self.group)


def _tell(stop: bool, steps: int, repeated: int, left: int) -> None:
    if repeated:
        log.info(
            f"each rank trained {steps} steps in this epoch; {repeated} batches were read again by ranks whose data"
            " ended before that of others (DDPFIX_UNEVEN=stop ends at the shortest instead)"
        )
    if left:
        why = "DDPFIX_UNEVEN=pad reads some again instead" if stop else "the others' loaders can be read once only"
        log.info(f"each rank trained {steps} steps in this epoch; {left} ranks had more batches, left out ({why})")
