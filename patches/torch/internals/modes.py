"""Keeps what ddpfix itself calls from the modes with which a program counts or traces the calls of torch."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager

import torch

# A context in which no subclass of tensors and no function mode is called.
Uncounted = torch._C.DisableTorchFunction


def hidden() -> ContextManager[None]:
    """A context in which no mode of the program's is called; subclasses of tensors still are what they are."""
    return _hidden() if any_mode() else contextlib.nullcontext()


# How many modes of a program (TorchDispatchMode, TorchFunctionMode) see each function of torch that is called.
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
any_function_mode: Callable[[], int] = torch._C._len_torch_function_stack


def any_mode() -> bool:
    """Return whether a mode of the program's is on."""
    return bool(_dispatch_modes() or any_function_mode())


@contextlib.contextmanager
def _hidden() -> Any:
    from torch.utils import _python_dispatch

    with torch._C.DisableTorchFunction(), _python_dispatch._disable_current_modes():
        yield
