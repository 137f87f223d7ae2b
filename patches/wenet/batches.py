"""An epoch that gives all ranks as many batches (:mod:`ddpfix.uneven.loader`).

What ranks exchange about the next batch: how many have one, and how many have failed.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, Iterator, List, Optional, Sequence

import torch
from torch import distributed

from ddpfix import log
from ddpfix.exchange import failure_records
from ddpfix.monitor.exit import error_file
from ddpfix.patching import temporary
from ddpfix.uneven import async_sum
from ddpfix.uneven.loader import NOTHING, AgreedEpoch

from ..torch.internals.tensors import is_norm

# Each rank reads some lines of the list, and none where there are fewer lines than ranks.
_FEWER = "Use fewer ranks, or a data list of more lines (utterances, shards)"


def epoch(filling: Optional[Filler], group: Any, loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch; a generator ends with an error, and so sends no numbers after it."""
    yield from Epoch(loader, filling, group)


class Epoch(AgreedEpoch):
    """Batches until the last rank has none (with a filler), or until the first one has none.

    Args:
        filling: what ranks train on that have no batch any more; None: all stop at the shortest.

    Raises:
        RuntimeError: on every rank, where a rank's loader has failed (there it is the loader's own error), or where a
            rank has no batch at all and there is no filler.
    """

    def __init__(self, loader: Any, filling: Optional[Filler], group: Any) -> None:
        super().__init__(loader, group)
        self.filling = filling
        # Batches of its own that this rank has trained on, how many ranks have a next one, and whether some have none.
        self.trained, self.having, self.filled = 0, 0, False
        self.error: Optional[Exception] = None
        self.iterator: Optional[Iterator[Any]] = None
        self.at_end = False

    def fetch(self) -> Any:
        """Return the next batch with an utterance in it: WeNet skips the others, but counts them, on one rank only."""
        if self.error is not None:
            return NOTHING
        try:
            return self._fetch()
        except Exception as error:
            self.error = error
            error_file.announce(error)
            return NOTHING

    def _fetch(self) -> Any:
        if self.iterator is None:
            # Every rank has to begin, because from 3.0.1 on that is a collective.
            self.iterator = iter(self.loader)
        if not self.at_end:
            for batch in self.iterator:
                if not without_utterances(batch):
                    return batch
        # Not every iterator can be read again after its end.
        self.at_end = True
        return NOTHING

    def numbers(self) -> Sequence[int]:
        return [int(self.batch is not NOTHING), int(self.error is not None)]

    def goes_on(self, sums: List[int]) -> bool:
        self.having, failed = sums
        if failed:
            self._fail()
        if not self.having or (self.having < self.size and self.filling is None):
            return False
        self.filled = self.filled or self.having < self.size
        if self.filled and not self.steps:
            self._lend()
        return True

    def _fail(self) -> None:
        """Raise what this rank's loader raised, or the cause that another rank left."""
        if self.error is not None:
            raise self.error
        otherwise = "the data loader of another rank failed, see that rank's own message"
        raise failure_records.PeerFailedError(failure_records.cause(), otherwise)

    def _lend(self) -> None:
        """A rank that has no batch at all gets one of another rank, as its filler."""
        has = self.batch is not NOTHING
        batches = _by_rank(int(has), self.group)
        empty = [rank for rank, number in enumerate(batches) if not number]
        lent = [self.batch if has else None]
        distributed.broadcast_object_list(lent, src=batches.index(1), group=self.group)
        if not has and self.filling is not None:
            self.filling.keep(lent[0])
        log.warning(f"ranks {empty} have no batch at all in this epoch. {_FEWER}.")

    def take(self) -> Any:
        if self.batch is NOTHING:
            assert self.filling is not None
            return self.filling.batch()
        if self.filling is not None:
            self.filling.keep(self.batch)
        self.trained += 1
        return self.batch

    def ended(self) -> None:
        if self.filled:
            trained = _by_rank(self.trained, self.group)
            log.info(
                f"ranks had {min(trained)} to {max(trained)} batches in this epoch: each took {self.steps} steps, and"
                " added zeros once it had no more batches. DDPFIX_UNEVEN=stop ends at the shortest instead"
            )
        elif self.having and not self.steps:
            # On all ranks, as they stop at once.
            raise RuntimeError(
                f"ddpfix: {self.size - self.having} of {self.size} ranks have no batch at all, and uneven=stop ends at"
                f" the shortest.\n{_FEWER}; under DDP, DDPFIX_UNEVEN=join trains the rest."
            )
        elif self.having:
            log.info(
                f"ranks stopped after {self.steps} steps, when the first one had no more batches. What {self.having}"
                " ranks still have is left out in this epoch; under DDP, DDPFIX_UNEVEN=join trains it"
            )
        elif not self.steps:
            log.warning("no rank has a batch: there is nothing to train on in this epoch")


def without_utterances(batch: Any) -> bool:
    """Return whether a batch (a tuple up to 2.2.1, then a dict) has no utterance: then its targets have length 0."""
    lengths = None
    if isinstance(batch, dict):
        lengths = batch.get("target_lengths")
    elif isinstance(batch, (tuple, list)) and len(batch) == 5:
        lengths = batch[4]
    return isinstance(lengths, torch.Tensor) and lengths.dim() > 0 and lengths.size(0) == 0


def _by_rank(number: int, group: Any) -> List[int]:
    """Every rank's number; once in an uneven epoch, so ranks wait for each other."""
    return [row[0] for row in async_sum.gathered([number], group=group)]


class Filler:
    """The smallest batch of this epoch so far, on which a rank without a batch trains with gradients of zero.

    To DDP such a rank is like any other, so that steps, learning rates, optimizer states and validations stay equal on
    all ranks. The others get the sum of their gradients over the number of all ranks, as under ``model.join``.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.size = -1
        self.kept: Any = None
        # What is in force while this rank's gradients are zero.
        self.silence: Optional[contextlib.ExitStack] = None

    def keep(self, batch: Any) -> None:
        """Called with each batch that is trained on; the smallest one costs least."""
        size = _elements(batch)
        if self.kept is None or size < self.size:
            self.size, self.kept = size, batch

    def batch(self) -> Any:
        """Return the batch; from the first one on until :meth:`close`, this rank's gradients are zero."""
        if self.silence is None:
            self.silence = contextlib.ExitStack()
            self._begin(self.silence)
        return dict(self.kept) if isinstance(self.kept, dict) else self.kept

    def _begin(self, stack: contextlib.ExitStack) -> None:
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                # Before DDP sees it, and also where a loss is not finite (zero times infinity would not be zero).
                stack.enter_context(parameter.register_hook(torch.zeros_like))
        for module in self.model.modules():
            if is_norm(module) and module.track_running_stats:
                # Rank 0's statistics become those of the others: they are not to become those of this one batch.
                stack.enter_context(temporary.replaced(module, "momentum", 0.0))

    def close(self) -> None:
        """The epoch has ended, or was broken off: the rank has gradients again."""
        if self.silence is not None:
            self.silence.close()
        self.silence = self.kept = None


def _elements(batch: Any) -> int:
    parts: Iterable[Any] = batch.values() if isinstance(batch, dict) else batch
    return sum(part.numel() for part in parts if isinstance(part, torch.Tensor))
