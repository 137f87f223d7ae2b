"""A process group of gloo's that takes as long for a reduction as a network of a given bandwidth would.

Waiting costs no time of the processor, which ranks on one machine share with their own communication.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List

import torch
from torch import distributed as dist


class Slowed(dist.ProcessGroup):
    """Reductions wait their turn, one after the other, as on a wire.

    Args:
        inner: gloo's process group.
        bandwidth: megabytes a second.
    """

    def __init__(self, inner: Any, bandwidth: float) -> None:
        super().__init__(inner.rank(), inner.size())
        self._inner, self._bandwidth = inner, bandwidth * 1e6
        self._wire = ThreadPoolExecutor(1)

    def allreduce(self, tensors: List[torch.Tensor], options: Any = None) -> Any:
        future: Any = torch.futures.Future()
        self._wire.submit(self._send, tensors, options, future)
        return _Sent(future)

    def _send(self, tensors: List[torch.Tensor], options: Any, future: Any) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        ready = time.monotonic() + size / self._bandwidth
        self._inner.allreduce(tensors, options or dist.AllreduceOptions()).wait()
        time.sleep(max(0.0, ready - time.monotonic()))
        future.set_result(tensors)

    def broadcast(self, tensors: List[torch.Tensor], options: Any = None) -> Any:
        return self._inner.broadcast(tensors, options or dist.BroadcastOptions())

    def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        return self._inner.allgather(outputs, inputs, options or dist.AllgatherOptions())

    def getBackendName(self) -> str:
        return "slowed"


class _Sent(dist.Work):
    def __init__(self, future: Any) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: Any = None) -> bool:
        self._future.wait()
        return True

    def get_future(self) -> Any:
        return self._future


def group(bandwidth: float) -> Any:
    """A group of all ranks whose reductions are slow."""

    name = f"slowed{bandwidth:g}"

    def make(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return Slowed(dist.new_group(backend="gloo"), bandwidth)

    if not hasattr(dist.Backend, name.upper()):
        dist.Backend.register_backend(name, make, devices=["cpu"])
    return dist.new_group(backend=name)
