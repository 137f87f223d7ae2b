"""Keeps what ddpfix itself calls from the modes with which a program counts or traces the calls of torch."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager

import torch


def hidden() -> ContextManager[None]:
    """A context in which no mode of the program's is called; subclasses of tensors still are what they are."""
    return _hidden() if _any_mode() else contextlib.nullcontext()


def _any_mode() -> bool:
    counts = (getattr(torch._C, name, None) for name in ("_len_torch_dispatch_stack", "_len_torch_function_stack"))
    return any(count is not None and count() for count in counts)


@contextlib.contextmanager
def _hidden() -> Any:
    from torch.utils import _python_dispatch

    with torch._C.DisableTorchFunction(), _python_dispatch._disable_current_modes():
        yield
