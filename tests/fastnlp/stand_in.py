"""What fastNLP needs on a machine without a GPU; and what makes its own launch quick.

It counts GPUs and asks for devices by number, hands the device to DDP as a GPU, and asks for NCCL.
"""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from typing import Any

import torch
from torch import distributed

from tests.fastnlp import releases


class _Cuda:
    """torch.cuda as a machine with eight GPUs has it."""

    def device_count(self) -> int:
        return 8

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class _Torch:
    """torch, as the module that chooses a driver sees it: its devices are the CPU."""

    cuda = _Cuda()

    def device(self, name: Any) -> torch.device:
        return torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def apply() -> None:
    """Have fastNLP find GPUs, and DDP train on the CPU."""
    _without_devices()
    if releases.has_drivers():
        home = "fastNLP.core.drivers.torch_driver"
        import_module(f"{home}.initialize_torch_driver").torch = _Torch()  # type: ignore[attr-defined]
        # One to five seconds a rank.
        import_module(f"{home}.ddp").sleep = lambda seconds: None  # type: ignore[attr-defined]
        torch.cuda.set_device = lambda device: None
        original = distributed.init_process_group

        @functools.wraps(original)
        def init(backend: Any = None, *args: Any, **kwargs: Any) -> None:
            original("gloo", *args, **kwargs)

        distributed.init_process_group = init


def _without_devices() -> None:
    original = torch.nn.parallel.DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> None:
        original(self, module, **kwargs)

    # fastNLP looks at the names that it takes.
    init.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    torch.nn.parallel.DistributedDataParallel.__init__ = init
