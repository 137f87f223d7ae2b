"""A loader that gives all ranks as many batches.

Each rank fetches one batch ahead and says so to the others, without waiting; the answer is looked at before that batch
is trained on, after a whole step. It is two numbers, summed: how many ranks have a batch, and how many have failed.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch import distributed

from ddpfix import log
from ddpfix.ranks import failure_watch
from ddpfix.ranks.async_sum import PendingSum

from .filler import Filler

_NOTHING = object()
# How long a rank counts what it leaves out (seconds); a loader that is slower than this has "at least" so many.
_COUNTING = 1.0


class Agreed:
    """Batches until the last rank has none (with a filler), or until the first one has none.

    Args:
        loader: this rank's batches.
        filling: what ranks train on that have no batch any more; None: all stop at the shortest.
        group: a gloo group of all ranks.

    Raises:
        RuntimeError: on every rank, where a rank's loader has failed (there it is the loader's own error), or where a
            rank has no batch at all and there is no filler.
    """

    def __init__(self, loader: Any, filling: Optional[Filler], group: Any) -> None:
        self.loader = loader
        self.filling = filling
        self.group = group

    def __len__(self) -> int:
        # 1.x asks for it, to print it.
        return len(self.loader)

    def close(self) -> None:
        """The epoch has ended, or was broken off."""
        if self.filling is not None:
            self.filling.end()

    def __iter__(self) -> Iterator[Any]:
        own = _Own(self.loader, self.group)
        size, steps, having, filled = distributed.get_world_size(), 0, 0, False
        said = own.ahead()
        while True:
            having, failed = said.result()
            if failed:
                own.fail()
            if not having or (having < size and self.filling is None):
                break
            filled = filled or having < size
            if filled and not steps:
                self._lend(own)
            batch, said = self._next(own)
            steps += 1
            yield batch
        if filled:
            _tell_filled(own, steps)
        elif having:
            _tell_left(own, steps, having, size)
        elif not steps:
            log.warning("no rank has a batch: there is nothing to train on in this epoch")

    def _next(self, own: _Own) -> Tuple[Any, PendingSum]:
        """The batch of this step; what ranks are about to say of the next one."""
        batch = own.batch
        if batch is _NOTHING:
            assert self.filling is not None
            return self.filling.batch(), own.ahead()
        if self.filling is not None:
            self.filling.keep(batch)
        own.trained += 1
        return batch, own.ahead()

    def _lend(self, own: _Own) -> None:
        """A rank that has no batch at all gets one of another rank, as its filler."""
        batches = _by_rank(int(own.batch is not _NOTHING), self.group)
        empty = [rank for rank, number in enumerate(batches) if not number]
        lent = [own.batch if own.batch is not _NOTHING else None]
        distributed.broadcast_object_list(lent, src=batches.index(1), group=self.group)
        if own.batch is _NOTHING and self.filling is not None:
            self.filling.keep(lent[0])
        log.warning(f"ranks {empty} have no batch at all in this epoch: there is less data than ranks; use fewer ranks")


class _Own:
    """This rank's batches, one ahead."""

    def __init__(self, loader: Any, group: Any) -> None:
        self.loader = loader
        self.group = group
        self.trained = 0
        self.batch: Any = _NOTHING
        self.error: Optional[Exception] = None
        self.iterator: Optional[Iterator[Any]] = None
        self.ended = False

    def ahead(self) -> PendingSum:
        """Fetch the next batch; returns what ranks are about to say of theirs."""
        self.batch = self.fetch() if self.error is None else _NOTHING
        return PendingSum([int(self.batch is not _NOTHING), int(self.error is not None)], self.group)

    def fetch(self) -> Any:
        """The next batch with an utterance in it: stock passes over the others, but counts them, on one rank alone."""
        try:
            return self._fetch()
        except Exception as error:
            self.error = error
            failure_watch.announce(error)
            return _NOTHING

    def _fetch(self) -> Any:
        if self.iterator is None:
            # Every rank has to begin, because from 3.0.1 on that is a collective.
            self.iterator = iter(self.loader)
        if not self.ended:
            for batch in self.iterator:
                if not without_utterances(batch):
                    return batch
        # Not every iterator can be asked again after its end.
        self.ended = True
        return _NOTHING

    def fail(self) -> None:
        """Raise what this rank's loader raised, or the cause that another rank left."""
        if self.error is not None:
            raise self.error
        cause = failure_watch.cause() or "the data loader of another rank failed, see that rank's own message"
        raise failure_watch.PeerFailedError(cause)

    def left(self) -> Tuple[int, bool]:
        """How many batches are left out here, and whether there may be more of them."""
        number, end = int(self.batch is not _NOTHING), time.monotonic() + _COUNTING
        # What goes wrong in batches that nobody trains on does not end the job.
        with contextlib.suppress(Exception):
            while number and time.monotonic() < end:
                if self._fetch() is _NOTHING:
                    return number, False
                number += 1
        return number, number > 0


def without_utterances(batch: Any) -> bool:
    """Whether a batch (a tuple up to 2.2.1, then a dict) has no utterance: then its targets have length 0."""
    lengths = None
    if isinstance(batch, dict):
        lengths = batch.get("target_lengths")
    elif isinstance(batch, (tuple, list)) and len(batch) == 5:
        lengths = batch[4]
    return isinstance(lengths, torch.Tensor) and lengths.dim() > 0 and lengths.size(0) == 0


def _by_rank(number: int, group: Any) -> List[int]:
    """Every rank's number; once in an uneven epoch, so ranks wait for each other."""
    table = [0] * distributed.get_world_size()
    table[distributed.get_rank()] = number
    return PendingSum(table, group).result()


def _tell_filled(own: _Own, steps: int) -> None:
    trained = _by_rank(own.trained, own.group)
    log.info(
        f"ranks had {min(trained)} to {max(trained)} batches in this epoch: each took {steps} steps, with zero"
        " gradients from those that were done (DDPFIX_UNEVEN=stop ends at the shortest instead)"
    )


def _tell_left(own: _Own, steps: int, having: int, size: int) -> None:
    """How much is left out in this epoch.

    Raises:
        RuntimeError: on all ranks, where they stop at once, because some have nothing.
    """
    if not steps:
        raise RuntimeError(
            f"ddpfix: {size - having} of {size} ranks have no batch at all: there is less data than ranks, and"
            " DDPFIX_UNEVEN=stop ends at the shortest. Use fewer ranks (under DDP, DDPFIX_UNEVEN=join trains the rest)."
        )
    number, more = own.left()
    left = _by_rank(number, own.group)
    least = "at least " if any(_by_rank(int(more), own.group)) else ""
    log.info(
        f"ranks stopped after {steps} steps, when the first one had no more batches; {least}{sum(left)} batches of"
        f" {having} ranks are left out in this epoch (under DDP, DDPFIX_UNEVEN=join trains them)"
    )
