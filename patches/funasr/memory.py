"""Length limits and batch sizes of FunASR's samplers hold for every batch, and lengths do not climb through an epoch.

The batches of a sampler are changed after it has made them (from 1.0.18 on). Where a sampler makes the batches of all
ranks from one list, this does so too, so that all ranks keep the same number of batches. The samplers before 1.0.18
measured one sample and yielded another, and gave all ranks the same batches: their batches are made anew.
"""

from __future__ import annotations

import copy
import inspect
import logging
import random
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from torch import distributed

from ddpfix.patching.site import PatchError, Site
from ddpfix.user_code import module_of

from . import epochs
from .batches import Batch, Counts, Limits, Measure, filled, hold, largest_first, mixed, whole_steps
from .batches import counts as new_counts

# These make one list of batches, which they deal to the ranks; the others make only their own rank's.
_ONE_LIST = ("CustomDistributedBufferDynamicBatchSampler", "EspnetStyleBatchSampler")
# These count samples, not frames, and measure a sample in units of length_scale_source.
_COUNTING = ("CustomDistributedBatchSampler", "CustomDistributedBufferBatchSampler")
# Sorted by length, and never shuffled afterwards.
_CLIMBING = ("CustomDistributedBufferDynamicBatchSampler", "CustomDistributedBufferBatchSampler")
_USED = ("rank", "num_replicas", "dataset", "batch_size", "is_training", "shuffle", "epoch")
# The samplers before 1.0.18; the counting ones do so whatever the batch type is.
_OLD_COUNTING = ("RankFullLocalShuffleBatchSampler", "RankFullGlobalShuffleBatchSampler")
_OLD_KINDS = ("BatchSampler", "RankFullLocalShuffleDynamicBatchSampler", *_OLD_COUNTING)
_OLD_USED = ("dataset", "batch_type", "batch_size", "buffer_size", "max_token_length", "shuffle", "shuffle_idx")


def samplers(site: Site, module: ModuleType, owner: Any) -> None:
    """Limits and order for one class of samplers (upstream 1828, 1716)."""
    _check(owner)
    known = site.keep(epochs.Samplers)

    def make(original: Any) -> Callable[..., Any]:
        def __iter__(self: Any) -> Iterator[Batch]:
            limits = limits_of(self, owner.__name__)
            counts = new_counts()
            plan = _one_list if owner.__name__ in _ONE_LIST else _own_list
            batches = plan(original, self, owner.__name__, limits, counts)
            note(known, self, batches, counts, limits)
            return iter(batches)

        return __iter__

    site.wrap_hot(owner, "__iter__", make)


def _check(owner: Any, used: Sequence[str] = _USED) -> None:
    source = inspect.getsource(owner.__init__)
    missing = [name for name in used if f"self.{name} =" not in source]
    if missing:
        raise PatchError(f"{owner.__name__} has no {', '.join(missing)} any more")


def note(known: epochs.Samplers, sampler: Any, batches: List[Batch], counts: Counts, limits: Limits) -> None:
    """Record the counts for the epoch's line, and the number of batches for ``len(sampler)``."""
    known.counted(sampler, len(batches))
    epoch = epochs.of(sampler)
    if epoch is not None:
        epoch.counts, epoch.batches = counts, len(batches)
        epoch.hints = {
            "long": f"max_token_length={limits.longest}",
            "short": f"min_token_length={limits.shortest}",
            "budget": f"batch_size={limits.budget}",
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
        counts.update(new_counts())
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
        counts["long"] += missing
        return
    own = counts["long"]
    longest = float("inf") if limits.longest is None else limits.longest
    long = sum(limits.length(index) > longest for index in share)
    counts["long"] = long
    counts["last"] += max(0, missing + own - long)


def replan(site: Site, module: ModuleType, owner: Any) -> None:
    """All samplers of one module before 1.0.18 (from 1.0.11 on there is a copy of it for language models).

    They shuffle, sort each buffer by length, and fill batches; then they yield positions where they have measured what
    lies at the shuffled position, lose the last batch, and (the default one) leave out the rank. This makes the batches
    anew by the sampler's own settings.
    """
    for kind in vars(module).copy().values():
        if inspect.isclass(kind) and module_of(kind) == module.__name__ and kind.__name__ in _OLD_KINDS:
            _check(kind, _OLD_USED)
            site.wrap_hot(kind, "__iter__", _iter(site.keep(epochs.Samplers)))
            site.wrap_hot(kind, "__len__", _len(site.keep(epochs.Samplers)))


def _len(samplers: epochs.Samplers) -> Callable[..., Any]:
    def make(original: Any) -> Callable[..., int]:
        def __len__(self: Any) -> int:
            planned = samplers.given.get(self)
            return original(self) if planned is None else planned

        return __len__

    return make


def _iter(samplers: epochs.Samplers) -> Callable[..., Any]:
    def make(original: Any) -> Callable[..., Any]:
        def __iter__(self: Any) -> Iterator[Batch]:
            dataset, number = _epoch_of(self, samplers)
            limits, counts = _old_limits(self, dataset), new_counts()
            order = list(range(len(dataset)))
            if self.shuffle:
                random.Random(number).shuffle(order)
            rank, ranks = _share(self, dataset)
            batches = filled(order, self.buffer_size, limits, counts)
            if getattr(self, "world_size", 1) > 1 and self.drop_last and self.shuffle:
                batches = _full_steps(batches, ranks, counts)
            batches = whole_steps(batches, ranks, number, counts)
            if self.shuffle:
                batches = mixed(batches, ranks, number, limits)
            if rank != 0:
                # All ranks have counted the same: rank 0 reports.
                counts = new_counts()
            batches = batches[rank::ranks]
            note(samplers, self, batches, counts, limits)
            return iter(batches)

        return __iter__

    return make


def _epoch_of(sampler: Any, samplers: epochs.Samplers) -> Tuple[Any, int]:
    """Return the dataset and the number of the epoch.

    Up to 1.0.5 the sampler of the validation was built on the training data, and its indices miss what is validated.
    """
    epoch = epochs.of(sampler)
    if epoch is not None:
        return epoch.loader.dataset, epoch.number
    samplers.read[sampler] = samplers.read.get(sampler, -1) + 1
    return sampler.dataset, samplers.read[sampler]


def _old_limits(sampler: Any, dataset: Any) -> Limits:
    """Return the same of an old sampler."""
    # Up to 1.0.5 there was no scale, and the text always counted.
    first = not hasattr(sampler, "length_scale_source")
    scale = getattr(sampler, "length_scale_source", 1.0)
    text = first or sampler.batch_type == "length"

    frames = [dataset.get_source_len(index) for index in range(len(dataset))].__getitem__

    def length(index: int) -> float:
        source: float = frames(index) / scale
        return source + dataset.get_target_len(index) if text else source

    def one(index: int) -> float:
        return 1

    counting = sampler.batch_type != "length" if first else sampler.batch_type == "example"
    cost = one if counting or type(sampler).__name__ in _OLD_COUNTING else length
    return Limits(length, sampler.max_token_length, cost, sampler.batch_size, frames)


def _share(sampler: Any, dataset: Any) -> Tuple[int, int]:
    """Return this rank's share of the batches: its number and the number of ranks."""
    if rank_split(dataset) or epochs.alone():
        return 0, 1
    epoch = epochs.of(sampler)
    if epoch is not None and not epoch.training and not hasattr(sampler, "world_size"):
        # Validation by the default sampler: each rank validates on everything, which is not wrong.
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _full_steps(batches: List[Batch], ranks: int, counts: Counts) -> List[Batch]:
    """Leave out a last step that not all ranks have a batch for."""
    end = len(batches) - len(batches) % ranks
    counts["last"] += sum(map(len, batches[end:]))
    return batches[:end]
