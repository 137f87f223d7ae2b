"""What a rank needs on a machine without CUDA, where FunASR is run *without* ddpfix: the trainers call CUDA.

Under ddpfix the patch ``funasr.cpu`` does this; an unpatched run must reach the failure that it is to show.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from tests.support import serving


def cuda() -> None:
    """The CUDA calls of the trainers do nothing, and devices given as numbers are the CPU."""
    torch.cuda.set_device = lambda device: None
    torch.nn.Module.cuda = lambda self, device=None: self
    torch.cuda.device = lambda device: contextlib.nullcontext()
    _numbers(torch.nn.Module, "to")
    _numbers(torch.Tensor, "to")
    original_tensor = torch.tensor

    def tensor(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        return original_tensor(*args, **kwargs)

    torch.tensor = tensor
    serving.without_devices()


def _numbers(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None and isinstance(kwargs["device"], int):
            kwargs["device"] = "cpu"
        args = tuple("cpu" if type(value) is int else value for value in args)
        return original(self, *args, **kwargs)

    setattr(owner, name, to)
