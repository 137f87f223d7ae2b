"""What the cures of SpeechBrain's training loop share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, List, Sequence

import torch
from torch import distributed

from ddpfix.ranks import async_sum

# What SpeechBrain itself gives its process group from 0.5.16 on: the slowest rank may be at a long validation.
_TIMEOUT = timedelta(hours=2)


def together(brain: Any) -> bool:
    """Whether this Brain trains on several ranks under DDP."""
    if not getattr(brain, "distributed_launch", False) or not distributed.is_available():
        return False
    return bool(distributed.is_initialized() and distributed.get_world_size() > 1)


def gathered(brain: Any, numbers: Sequence[int]) -> List[List[int]]:
    """Every rank's numbers, in the order of ranks: one small collective, in which every rank has to take part."""
    table = torch.zeros(distributed.get_world_size(), len(numbers), dtype=torch.int64)
    table[distributed.get_rank()] = torch.tensor(numbers)
    if distributed.get_backend() != "gloo":
        table = table.to(brain.device)
    distributed.all_reduce(table)
    found: List[List[int]] = table.tolist()
    return found


def cpu_group() -> Any:
    """A gloo group of all ranks, or None (:func:`ddpfix.ranks.async_sum.cpu_group`); every rank has to come here."""
    return async_sum.cpu_group(_TIMEOUT)
