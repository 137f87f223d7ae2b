"""Tells a forward that activation checkpointing repeats in backward from one that the program calls."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Optional

import torch

# Which backward runs on this thread, -1 for none: since torch 2.1.
TASK: Any = getattr(torch._C, "_current_graph_task_id", None)
# What repeats a forward in torch.utils.checkpoint, with and without reentrance.
_REPEATING = ("backward", "unpack", "unpack_hook")


def in_backward() -> bool:
    """Return whether autograd runs a backward on this thread; in an older torch, whether its checkpoints repeat one."""
    return bool(TASK() >= 0) if TASK is not None else _repeats(sys._getframe(1))


def _repeats(frame: Optional[FrameType]) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _REPEATING and frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False
