"""The samplers before 1.0.18: they measured one sample and yielded another, and gave all ranks the same batches.

They shuffle, sort each buffer by length, and fill batches; then they yield positions where they have measured what lies
at the shuffled position, lose the last batch, and (the default one) leave out the rank. This makes the batches anew by
the sampler's own settings.
"""

from __future__ import annotations

import inspect
from random import Random
from types import ModuleType
from typing import Any, Callable, Iterator, List, Tuple

from torch import distributed

from ddpfix.patching.site import PatchError, Site
from ddpfix.user_code import module_of

from . import epochs, memory
from .batches import Batch, Counts, Limits, filled, mixed, whole_steps

# These count samples whatever the batch type is.
_COUNTING = ("RankFullLocalShuffleBatchSampler", "RankFullGlobalShuffleBatchSampler")
_KINDS = ("BatchSampler", "RankFullLocalShuffleDynamicBatchSampler", *_COUNTING)
_USED = ("dataset", "batch_type", "batch_size", "buffer_size", "max_token_length", "shuffle", "shuffle_idx")


def replan(site: Site, module: ModuleType, owner: Any) -> None:
    """All samplers of one module (upstream has a copy of them for its language models from 1.0.11 on)."""
    for kind in vars(module).copy().values():
        if inspect.isclass(kind) and module_of(kind) == module.__name__ and kind.__name__ in _KINDS:
            _check(kind)
            site.wrap_hot(kind, "__iter__", _iter(site.keep(epochs.Samplers)))
            site.wrap_hot(kind, "__len__", _len(site.keep(epochs.Samplers)))


def _check(kind: Any) -> None:
    source = inspect.getsource(kind.__init__)
    missing = [name for name in _USED if f"self.{name} =" not in source]
    if missing:
        raise PatchError(f"{kind.__name__} has no {', '.join(missing)} any more")


def _len(samplers: epochs.Samplers) -> Callable[..., Any]:
    def make(original: Any) -> Callable[..., int]:
        def __len__(self: Any) -> int:
            planned = samplers.given(self)
            return original(self) if planned is None else planned

        return __len__

    return make


def _iter(samplers: epochs.Samplers) -> Callable[..., Any]:
    def make(original: Any) -> Callable[..., Any]:
        def __iter__(self: Any) -> Iterator[Batch]:
            dataset, number = _read(self, samplers)
            limits, counts = _limits(self, dataset), Counts()
            order = list(range(len(dataset)))
            if self.shuffle:
                Random(number).shuffle(order)
            rank, ranks = _share(self, dataset)
            batches = filled(order, self.buffer_size, limits, counts)
            if getattr(self, "world_size", 1) > 1 and self.drop_last and self.shuffle:
                batches = _full_steps(batches, ranks, counts)
            batches = whole_steps(batches, ranks, number, counts)
            if self.shuffle:
                batches = mixed(batches, ranks, number, limits)
            if rank != 0:
                # All ranks have counted the same: rank 0 reports.
                counts = Counts()
            batches = batches[rank::ranks]
            memory.note(samplers, self, batches, counts, limits)
            return iter(batches)

        return __iter__

    return make


def _read(sampler: Any, samplers: epochs.Samplers) -> Tuple[Any, int]:
    """Return the dataset and the number of the epoch.

    Up to 1.0.5 the sampler of the validation was built on the training data, and its indices miss what is validated.
    """
    epoch = epochs.of(sampler)
    if epoch is not None:
        return epoch.loader.dataset, epoch.number
    samplers.read[sampler] = samplers.read.get(sampler, -1) + 1
    return sampler.dataset, samplers.read[sampler]


def _limits(sampler: Any, dataset: Any) -> Limits:
    """Return the limits of this sampler's settings, measured as the sampler itself measures."""
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
    cost = one if counting or type(sampler).__name__ in _COUNTING else length
    return Limits(length, sampler.max_token_length, cost, sampler.batch_size, frames)


def _share(sampler: Any, dataset: Any) -> Tuple[int, int]:
    """Return this rank's share of the batches: its number and the number of ranks."""
    if memory.rank_split(dataset) or epochs.alone():
        return 0, 1
    epoch = epochs.of(sampler)
    if epoch is not None and not epoch.training and not hasattr(sampler, "world_size"):
        # Validation by the default sampler: each rank validates on everything, which is not wrong.
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _full_steps(batches: List[Batch], ranks: int, counts: Counts) -> List[Batch]:
    """Leave out a last step that not all ranks have a batch for."""
    end = len(batches) - len(batches) % ranks
    counts.last += sum(map(len, batches[end:]))
    return batches[:end]
