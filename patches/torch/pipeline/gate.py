"""Tells whether a program has begun what the patches of DDP are for, before ddpfix was activated."""

from __future__ import annotations

import sys


def is_passed() -> bool:
    """Return whether there is a process group."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())
