"""What SpeechBrain before 0.5.14 needs on a machine without a GPU, where it cannot use gloo on the CPU.

It counts GPUs whatever the backend, and hands the device to DDP as a GPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from packaging.version import Version


def apply(release: Version) -> None:
    """There are GPUs to count, and DDP gets no device."""
    if release >= Version("0.5.14"):
        return
    torch.cuda.device_count = lambda: 8
    original = torch.nn.parallel.DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, device_ids: Any = None, **kwargs: Any) -> None:
        original(self, module, **kwargs)

    torch.nn.parallel.DistributedDataParallel.__init__ = init
