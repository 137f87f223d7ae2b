"""Whether this rank reads a loader that gives every rank the same samples, as far as torch's own classes tell."""

from __future__ import annotations

from typing import Any, Tuple

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

# They give all samples of a dataset, on each rank.
_WHOLE = (RandomSampler, SequentialSampler)


class Unsharded:
    """The loaders that were read since DDP came into use.

    Attributes:
        is_read: whether one of them had a sampler that gives all samples.
    """

    def __init__(self) -> None:
        self.is_read = False

    def begin(self, wrapped: Any, iterator: Any, args: Tuple[Any, ...], kwargs: Any) -> None:
        """Around the constructor of a loader's iterator."""
        wrapped(*args, **kwargs)
        loader = args[0] if args else kwargs.get("loader")
        # Classes of the program's own are not asked.
        batches: Any = getattr(loader, "batch_sampler", None)
        if type(batches) is BatchSampler:
            self.is_read |= type(batches.sampler) in _WHOLE
        elif batches is None:
            self.is_read |= type(getattr(loader, "sampler", None)) in _WHOLE
