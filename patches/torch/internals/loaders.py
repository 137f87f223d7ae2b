"""What a DataLoader and its iterators keep under names that are not public."""

from __future__ import annotations

from typing import Any, Optional

from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

# The lengths of these are what their passes have.
_OWN = (DistributedSampler, RandomSampler, SequentialSampler)


def begin_again(iterator: Any, loader: Any) -> None:
    """Have an iterator with persistent workers begin its loader's next pass."""
    iterator._reset(loader)


def another(loader: Any) -> Any:
    """Return an iterator of a loader, beside the one that it knows of."""
    return loader._get_iterator()


def sampler_of(iterator: Any) -> Any:
    """Return what gives an iterator its indices; None where it has none."""
    return getattr(iterator, "_index_sampler", None)


def length_of(iterator: Any) -> Optional[int]:
    """Return how many samples a pass of an iterator has; None where its samplers are not torch's own."""
    batches = sampler_of(iterator)
    if type(batches) is not BatchSampler or type(batches.sampler) not in _OWN:
        return None
    return len(batches.sampler)


def samples_of(iterator: Any, length: int) -> int:
    """Return how many samples the batch has that an iterator gave last; ``length`` is :func:`length_of` it."""
    size: int = sampler_of(iterator).batch_size
    begun: int = iterator._num_yielded - 1
    return max(0, min(size, length - begun * size))
