"""What the fixes for SpeechBrain's training loop share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import distributed

from ddpfix.ranks.uneven import async_sum

# What SpeechBrain itself gives its process group from 0.5.16 on: the slowest rank may be at a long validation.
_TIMEOUT = timedelta(hours=2)


def together(brain: Any) -> bool:
    """Return whether this Brain trains on several ranks under DDP."""
    if not getattr(brain, "distributed_launch", False) or not distributed.is_available():
        return False
    return bool(distributed.is_initialized() and distributed.get_world_size() > 1)


def cpu_group() -> Any:
    """Return a gloo group of all ranks, or None (:func:`.async_sum.cpu_group`); every rank has to come here."""
    return async_sum.cpu_group(_TIMEOUT)
