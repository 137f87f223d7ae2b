"""What FSDP keeps under names that are not public."""

from __future__ import annotations

from typing import Any


def is_inner(wrapper: Any) -> bool:
    """Return whether FSDP has found that a wrapper is a part of another one."""
    return getattr(wrapper, "_is_root", None) is False


def reduces(wrapper: Any) -> bool:
    """Return whether gradients are reduced, as they are not under ``no_sync``."""
    return bool(wrapper._sync_gradients)
