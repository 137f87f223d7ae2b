"""Ranks with different numbers of batches finish a training epoch together (all releases).

With a DataLoader of the user's own, or an IterableDataset, ranks may have different numbers of batches. Under DDP the
longer ranks then wait in an all-reduce that the others never enter, for up to two hours. Ranks agree at the beginning
of an epoch: the shorter ones read some batches again (``pad``), or all stop at the shortest (``stop``). Where some
rank cannot say how many it has, they agree one batch ahead instead, beside the training step
(:class:`ddpfix.uneven.loader.StreamEpoch`).

Validation is not touched: its forward has no collective, and a batch that counts twice would change its numbers. The
exception is InputNormalization of 1.0.3 over a batch or globally, which reduces in evaluation, too.

Reached through the loops of ``Brain.fit``: a recipe that goes over its loader in a loop of its own is not covered.
"""

from __future__ import annotations

import functools
import inspect
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any, Iterator, Tuple

from torch.utils.data import IterableDataset

from ddpfix import log
from ddpfix.patching import checks, temporary
from ddpfix.patching.site import PatchError, Site
from ddpfix.uneven import async_sum
from ddpfix.uneven.loader import Counted, EvenLoader, Held, StreamEpoch, line, policy

from . import brains

UNKNOWN = -1
# What SpeechBrain itself gives its process group from 0.5.16 on: the slowest rank may be at a long validation.
_TIMEOUT = timedelta(hours=2)


def even(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on the loops over ``tqdm(loader, ...)``: ``_fit_train`` and ``_fit_valid``, before 0.5.12 ``fit``."""
    names = [name for name in ("_fit_train", "_fit_valid") if name in vars(owner)] or ["fit"]
    for name in names:
        checks.needs_names(owner, name, "tqdm")
    if "tqdm" not in vars(module):
        raise PatchError(f"{module.__name__} has no tqdm")
    stop, held = policy(site, "SpeechBrain") == "stop", site.keep(Held)
    loops = [inspect.unwrap(vars(owner)[name]).__code__ for name in names]

    def loop(wrapped: Any, brain: Any, args: Any, kwargs: Any) -> Any:
        if not brains.is_distributed(brain):
            return wrapped(*args, **kwargs)
        original = vars(module)["tqdm"]

        def tqdm(iterable: Any, *others: Any, **more: Any) -> Any:
            # What runs within the loop (another Brain's evaluation, on one rank perhaps) has loops of its own.
            own = sys._getframe(1).f_code in loops
            return original(evened(brain, iterable, stop, held) if own else iterable, *others, **more)

        # For the length of the loop only: elsewhere tqdm is used as a class.
        with temporary.replaced(module, "tqdm", tqdm):
            return wrapped(*args, **kwargs)

    for name in names:
        site.wrap(owner, name, loop)


def evened(brain: Any, loader: Any, stop: bool, held: Held) -> Any:
    """Return the loader itself where all ranks, which come here, have as many batches; RuntimeError: one has none."""
    if not brain.modules.training and not _reduces_in_evaluation(brain):
        return loader
    # A LoopedLoader holds the loader that it reads.
    held.hold(getattr(loader, "loader", loader))
    numbers, totals = zip(*async_sum.gathered(remaining(loader), brain.device))
    if UNKNOWN in numbers:
        group = async_sum.cpu_group(_TIMEOUT)
        if group is None:
            log.warning("ranks cannot exchange their numbers of batches, because gloo is not available")
            return loader
        return EvenLoader(loader, lambda own: StreamEpoch(own, stop, group))
    empty = [rank for rank, total in enumerate(totals) if not total]
    if empty:
        raise RuntimeError(
            f"ddpfix: {len(empty)} of {len(totals)} ranks have no batch (rank {', '.join(map(str, empty))[:60]}). Use"
            " fewer ranks, a smaller batch size, or drop_last=False."
        )
    if len(set(numbers)) == 1:
        return loader
    target = min(numbers) if stop else max(numbers)
    log.info(line(numbers, target))
    return EvenLoader(loader, functools.partial(counted, target), target)


def remaining(loader: Any) -> Tuple[int, int]:
    """Return how many batches this rank has still to give in this epoch (after a resume), and in a whole epoch."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        # Its length, where it has one, is a guess: workers may each give all of it.
        return UNKNOWN, UNKNOWN
    try:
        total = len(loader)
    except (TypeError, AttributeError, NotImplementedError):
        return UNKNOWN, UNKNOWN
    # A LoopedLoader counts its own steps; a SaveableDataLoader holds how many to skip.
    given = loader.step if hasattr(loader, "epoch_length") else getattr(loader, "_speechbrain_recovery_skip_to", None)
    return max(0, total - (given or 0)), total


def counted(target: int, loader: Any) -> Iterator[Any]:
    """Give exactly ``target`` batches of a loader: the first ones, or all and then some of them again."""
    batches = Counted(loader, target, again)
    yield from batches
    if batches.is_first:
        _rewind(loader)
    if batches.left:
        raise RuntimeError("ddpfix: this rank's loader cannot be read twice. Set DDPFIX_UNEVEN=stop")


def again(loader: Any) -> Iterator[Any]:
    """Return the loader from its beginning; for a checkpoint in the midst of the epoch it stays at its end."""
    _rewind(loader)
    position = getattr(loader, "_speechbrain_iterator", None)
    iterator: Iterator[Any] = iter(loader)
    if position is not None:
        loader._speechbrain_iterator = position
    return iterator


def _rewind(loader: Any) -> None:
    """A LoopedLoader that was not read to its end would begin the next epoch there."""
    if hasattr(loader, "epoch_length"):
        loader.step = 0


def _reduces_in_evaluation(brain: Any) -> bool:
    hparams = getattr(brain, "hparams", None)
    held = [*brain.modules.modules(), *(vars(hparams).values() if hparams is not None else ())]
    normalizations = [module for module in held if type(module).__name__ == "InputNormalization"]
    return any(
        getattr(module, "norm_type", "") in ("batch", "global")
        and "ddp_all_reduce" in getattr(type(module).forward, "__code__", _reduces_in_evaluation.__code__).co_names
        for module in normalizations
    )
