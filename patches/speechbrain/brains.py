"""What the cures of SpeechBrain's training loop share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, List, Sequence, Tuple

import torch
from torch import distributed

from ddpfix import log

# (the default process group, ours of the same ranks): a group dies with the default one.
_GROUPS: List[Tuple[Any, Any]] = []
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
    """A gloo group of all ranks, for small things that live on the CPU, or None; every rank has to come here.

    One of our own also with gloo as the default: what is under way in it does not mix with the gradients.
    """
    default = distributed.distributed_c10d._get_default_group()
    if not _GROUPS or _GROUPS[0][0] is not default:
        try:
            group = distributed.new_group(backend="gloo", timeout=_TIMEOUT) if distributed.is_gloo_available() else None
        except RuntimeError as error:
            log.debug(f"no gloo group: {error}")
            group = None
        _GROUPS[:] = [(default, group)]
    return _GROUPS[0][1]
