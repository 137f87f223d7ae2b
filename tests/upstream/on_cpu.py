"""Lets torch's tests that ask for a GPU a rank run on the CPU: whatever they put on a GPU stays where it is.

Without this, 12 of its 109 tests about DDP run on a machine without GPUs. Those that need a real GPU (streams, nccl,
mixed precision) fail then, in stock as under ddpfix, and count for nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any, Callable, Dict, Iterator, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed


def _asks_for_nothing(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda test: test


# Before the tests are imported: they are decorated then.
_decorators: Any = common_distributed
_decorators.skip_if_lt_x_gpu = _asks_for_nothing
_decorators.nccl_skip_if_lt_x_gpu = _asks_for_nothing
_decorators.skip_if_no_gpu = lambda test: test


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Takes GPUs out of the arguments of torch's functions."""

    def __torch_function__(self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        named: Dict[str, Any] = dict(kwargs or {})
        if "device" in named:
            named["device"] = _device(named["device"])
        if func is torch.Tensor.to or getattr(func, "__name__", "") == "_parse_to":
            args = tuple(map(_device, args))
        if func is torch.device:
            return torch.device("cpu")
        return func(*args, **named)


def _device(value: Any) -> Any:
    """The CPU in place of what names a GPU; anything else as it is."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    number = isinstance(value, int) and not isinstance(value, bool)
    return "cpu" if number or (isinstance(value, str) and value.startswith("cuda")) else value


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """In here GPUs are asked for in vain, and DDP is not told of them."""
    cuda: Any = torch.cuda
    cuda.device_count = lambda: int(os.environ["WORLD_SIZE"])
    cuda.set_device = lambda *_: None
    cuda.synchronize = lambda *_, **__: None
    cuda.device = lambda *_: contextlib.nullcontext()
    cuda.current_device = lambda: 0
    if hasattr(torch, "accelerator"):
        torch.accelerator.current_device_index = cuda.current_device
        torch.accelerator.current_stream = lambda *_: torch.cpu.current_stream()
    _without_devices()
    with OnCpu():
        yield


def _without_devices() -> None:
    stock = DistributedDataParallel.__init__

    @functools.wraps(stock)
    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any) -> None:
        stock(self, module, None, None, *args, **kw)

    DistributedDataParallel.__init__ = init
