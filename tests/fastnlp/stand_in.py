"""What fastNLP needs on a machine without a GPU; and what makes its own launch quick.

It counts GPUs and asks for devices by number, hands the device to DDP as a GPU, and asks for NCCL.
"""

from __future__ import annotations

import functools
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed

from tests.fastnlp import releases
from tests.support import serving


def apply() -> None:
    """Have fastNLP find GPUs, and DDP train on the CPU."""
    serving.without_devices()
    if releases.has_drivers():
        torch.cuda.set_device = lambda device: None
        # The module that chooses a driver sees a torch with eight GPUs, whose devices are the CPU.
        cuda = SimpleNamespace(**{**vars(torch.cuda), "device_count": lambda: 8})
        seen = {**vars(torch), "cuda": cuda, "device": lambda name: torch.device("cpu")}
        home = "fastNLP.core.drivers.torch_driver"
        import_module(f"{home}.initialize_torch_driver").torch = SimpleNamespace(**seen)  # type: ignore[attr-defined]
        # One to five seconds a rank.
        import_module(f"{home}.ddp").sleep = lambda seconds: None  # type: ignore[attr-defined]
        original = distributed.init_process_group

        @functools.wraps(original)
        def init(backend: Any = None, *args: Any, **kwargs: Any) -> None:
            original("gloo", *args, **kwargs)

        distributed.init_process_group = init
