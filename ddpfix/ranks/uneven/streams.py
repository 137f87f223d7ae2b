"""Ranks whose loaders cannot say how many batches they have end an epoch together (:mod:`.lookahead`).

What ranks exchange about the next batch: how many have one that they have not trained on in this epoch, and how many
have any.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence

from ddpfix import log
from ddpfix.ranks.uneven import lookahead


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
        return Epoch(self.loader, self.stop, self.group)


class Epoch(lookahead.Epoch):
    """This rank's batches, which are read again where the others have more.

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
        return next(self.iterator, lookahead.NOTHING)

    def numbers(self) -> Sequence[int]:
        have = self.batch is not lookahead.NOTHING
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
        if self.batch is lookahead.NOTHING:
            self.fresh = False
            self.iterator = iter(self.loader)
            self.batch = self.fetch()

    def ended(self) -> None:
        if self.left and not self.steps:
            raise RuntimeError(
                f"ddpfix: {self.size - self.ready} of {self.size} ranks have no batch at all: there is too little data"
                " for so many ranks and workers, or it is split unevenly. Use fewer ranks."
            )
        _tell(self.stop, self.steps, self.repeated, self.left)


def _tell(stop: bool, steps: int, repeated: int, left: int) -> None:
    if repeated:
        log.info(
            f"each rank trained {steps} steps in this epoch; {repeated} batches were read again on ranks with less data"
            " (DDPFIX_UNEVEN=stop ends at the shortest instead)"
        )
    if left:
        why = "DDPFIX_UNEVEN=pad repeats some instead" if stop else "the other ranks' loaders can be read only once"
        log.info(
            f"each rank trained {steps} steps in this epoch; further batches of {left}"
            f" {'rank' if left == 1 else 'ranks'} are left out ({why})"
        )
