"""Length limits and batch sizes of FunASR's samplers hold for every batch, and lengths do not climb through an epoch.

The batches of a sampler are changed after it has made them (from 1.0.18 on). Where a sampler makes the batches of all
ranks from one list, this does so too, so that all ranks keep the same number of batches.
"""

from __future__ import annotations

import copy
import inspect
import logging
import random
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Callable, Iterator, List, Optional

from ddpfix.patching.site import PatchError, Site

from . import epochs
from .batches import Batch, Counts, Limits, Measure, hold, largest_first, mixed, whole_steps

# These make one list of batches, which they deal to the ranks; the others make only their own rank's.
_ONE_LIST = ("CustomDistributedBufferDynamicBatchSampler", "EspnetStyleBatchSampler")
# These count samples, not frames, and measure a sample in units of length_scale_source.
_COUNTING = ("CustomDistributedBatchSampler", "CustomDistributedBufferBatchSampler")
# Sorted by length, and never shuffled afterwards.
_CLIMBING = ("CustomDistributedBufferDynamicBatchSampler", "CustomDistributedBufferBatchSampler")
_USED = ("rank", "num_replicas", "dataset", "batch_size", "is_training", "shuffle", "epoch")


def samplers(site: Site, module: ModuleType, owner: Any) -> None:
    """Limits and order for one class of samplers (upstream 1828, 1716)."""
    _check(owner)
    known = site.keep(epochs.Samplers)

    def make(original: Any) -> Callable[..., Any]:
        def __iter__(self: Any) -> Iterator[Batch]:
            limits = limits_of(self, owner.__name__)
            counts = Counts()
            plan = _one_list if owner.__name__ in _ONE_LIST else _own_list
            batches = plan(original, self, owner.__name__, limits, counts)
            note(known, self, batches, counts, limits)
            return iter(batches)

        return __iter__

    site.wrap_hot(owner, "__iter__", make)


def _check(owner: Any) -> None:
    source = inspect.getsource(owner.__init__)
    missing = [name for name in _USED if f"self.{name} =" not in source]
    if missing:
        raise PatchError(f"{owner.__name__} has no {', '.join(missing)} any more")


def note(known: epochs.Samplers, sampler: Any, batches: List[Batch], counts: Counts, limits: Limits) -> None:
    """Record the counts for the epoch's line, and the number of batches for ``len(sampler)``."""
    known.counted(sampler, len(batches))
    epoch = epochs.of(sampler)
    if epoch is not None:
        epoch.counts, epoch.batches = counts, len(batches)
        epoch.hints = {
            "long": f"dataset_conf.max_token_length={limits.longest}",
            "short": f"dataset_conf.min_token_length={limits.shortest}",
            "budget": f"dataset_conf.batch_size={limits.budget}",
        }


def limits_of(sampler: Any, kind: str) -> Limits:
    """Return the limits of this sampler's settings, measured as the sampler itself measures."""
    dataset = sampler.dataset
    frames = [dataset.get_source_len(index) for index in range(len(dataset))].__getitem__
    scale = sampler.length_scale_source if kind in _COUNTING else 1

    def length(index: int) -> float:
        return frames(index) / scale  # type: ignore[no-any-return]

    def weight(index: int) -> float:
        return frames(index) + int(dataset.get_target_len(index) * 1.2)  # type: ignore[no-any-return]

    def one(index: int) -> float:
        return 1

    if kind in _COUNTING or getattr(sampler, "batch_type", None) == "example":
        cost: Measure = one
    else:
        cost = weight if _weighs_text(sampler, kind) else frames
    longest, shortest = getattr(sampler, "max_token_length", None), getattr(sampler, "min_token_length", None)
    return Limits(length, longest, cost, sampler.batch_size, frames, shortest)


def _weighs_text(sampler: Any, kind: str) -> bool:
    """From 1.0.26 on this one counts the text as well; that is also when it learned to resume."""
    return kind == "EspnetStyleBatchSampler" and sampler.batch_type == "token" and hasattr(sampler, "start_step")


def keep_limit(site: Site, module: ModuleType, owner: Any) -> None:
    """In 1.0.18 and 1.0.19 one class is given ``max_token_length`` and forgets it."""

    def built(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        instance.max_token_length = kwargs.get("max_token_length")

    site.wrap(owner, "__init__", built)


def _own_list(original: Any, sampler: Any, kind: str, limits: Limits, counts: Counts) -> List[Batch]:
    """Return the batches of one rank, from a sampler that knows no others."""
    given = [list(batch) for batch in original(sampler)]
    batches = hold(given, limits, counts)
    share = range(sampler.rank, sampler.total_size, sampler.num_replicas)
    _missed(sampler, len(share) - sum(map(len, given)), share, limits, counts)
    if not (sampler.shuffle and sampler.is_training):
        return batches
    if kind in _CLIMBING:
        return mixed(batches, 1, sampler.epoch, limits)
    # Batches of so many samples are left in their order: nothing about them depends on lengths.
    return batches if kind in _COUNTING else largest_first(batches, limits)


def _one_list(original: Any, sampler: Any, kind: str, limits: Limits, counts: Counts) -> List[Batch]:
    """This rank's share of the batches that a sampler makes for all ranks."""
    ranks, start = sampler.num_replicas, getattr(sampler, "start_step", 0)
    given = _all_ranks(original, sampler)
    batches = hold(given, limits, counts)
    _missed(sampler, len(sampler.dataset) - sum(map(len, given)), range(len(sampler.dataset)), limits, counts)
    batches = whole_steps(batches, ranks, sampler.epoch, counts)
    if kind in _CLIMBING and sampler.shuffle and sampler.is_training:
        batches = mixed(batches, ranks, sampler.epoch, limits)
    if sampler.rank != 0 and not rank_split(sampler.dataset):
        # All ranks have counted the same: rank 0 reports.
        vars(counts).update(vars(Counts()))
    if kind == "EspnetStyleBatchSampler":
        each = len(batches) // ranks
        own = batches[sampler.rank * each : (sampler.rank + 1) * each]
        return (largest_first(own, limits) if sampler.shuffle and sampler.is_training else own)[start:]
    return batches[sampler.rank :: ranks][start:]


def _all_ranks(original: Any, sampler: Any) -> List[Batch]:
    """Return all batches in the sampler's order: what it would give if there were one rank."""
    whole = copy.copy(sampler)
    whole.rank, whole.num_replicas, whole.start_step = 0, 1, 0
    with _muted(inspect.getsourcefile(type(sampler))):
        batches = [list(batch) for batch in original(whole)]
    # With several ranks the sampler draws the batches that fill the last step from the global stream: what comes after
    # has to find that stream where it would have been.
    random.choices((None,), k=-len(batches) % sampler.num_replicas)
    return batches


@contextmanager
def _muted(file: Optional[str]) -> Iterator[None]:
    """The sampler logs its rank and its number of batches, which are not those of one rank here."""

    def other(record: logging.LogRecord) -> bool:
        return record.pathname != file

    logging.getLogger().addFilter(other)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(other)


def rank_split(dataset: Any) -> bool:
    """Return whether this rank's dataset holds only its own share (the only kind up to 1.0.5)."""
    return type(getattr(dataset, "index_ds", None)).__name__ in ("IndexDSJsonlRankSplit", "IndexDSJsonl")


def _missed(sampler: Any, missing: int, share: Any, limits: Limits, counts: Counts) -> None:
    """Count what the sampler itself left out: over-long samples, and a last batch that is not full."""
    if missing <= 0:
        return
    if not sampler.drop_last:
        counts.long += missing
        return
    own = counts.long
    longest = float("inf") if limits.longest is None else limits.longest
    long = sum(limits.length(index) > longest for index in share)
    counts.long = long
    counts.last += max(0, missing + own - long)
