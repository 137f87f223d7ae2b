"""What the fixes for SpeechBrain's training loop share."""

from __future__ import annotations

from typing import Any

from torch import distributed


def is_distributed(brain: Any) -> bool:
    """Return whether this Brain trains on several ranks under DDP."""
    if not getattr(brain, "distributed_launch", False) or not distributed.is_available():
        return False
    return bool(distributed.is_initialized() and distributed.get_world_size() > 1)
