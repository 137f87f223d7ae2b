"""Peak memory of the phases of a step: on an accelerator from its allocator, else of the process when it is sampled."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

import torch

from ddpfix import devices
from ddpfix.probing.result import Memory

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident() -> Optional[int]:
    """Return the resident set of this process in bytes; None where the system does not tell it this way."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


class Phases:
    """Peaks of a program's phases: forward, backward, optimizer.

    On an accelerator, the peak of torch's allocator is reset at the beginning of each phase.

    Attributes:
        phase: the one that has begun last; "" between steps.

    Args:
        measure: gives the memory in use where no allocator counts a peak; called ``name`` in the result.
    """

    def __init__(self, measure: Callable[[], Optional[int]] = resident, name: str = "resident") -> None:
        self.device: Any = None
        self._peaks: Dict[str, int] = {}
        self.phase = ""
        self._measure, self._name = measure, name

    def enter(self, phase: str) -> None:
        """A phase begins, and the one before it ends; "" is none of them."""
        self.look()
        if self.is_on_device():
            devices.forget_peak(self.device)
        self.phase = phase
        self.look()

    def look(self) -> None:
        """Take the memory of this moment (on an accelerator, the peak since the phase began) into account."""
        if not self.phase:
            return
        now = devices.peak_memory(self.device) if self.is_on_device() else self._measure()
        if now is not None:
            self._peaks[self.phase] = max(self._peaks.get(self.phase, 0), int(now))

    def is_on_device(self) -> bool:
        """Return whether the allocator of a device counts its peak."""
        return self.device is not None and devices.peak_memory(self.device) is not None

    def memory(self) -> Optional[Memory]:
        """Return the peaks; None where nothing is known."""
        if not self._peaks:
            return None
        return Memory("device" if self.is_on_device() else self._name, **self._peaks)


class Estimate:
    """Estimates the memory of a model: parameters, buffers, gradients, and what a forward keeps for its backward.

    Of that, each storage counts once, and parameters not at all.

    Attributes:
        parameters: bytes of the parameters and buffers.
        gradients: the most bytes of gradients.
        saved: the most bytes of tensors kept for a backward; None where they were not counted.
    """

    def __init__(self, model: Any) -> None:
        self._model, tensors = model, [*model.parameters(), *model.buffers()]
        self._known: Set[int] = {_storage(tensor) for tensor in tensors}
        self._kept: Set[int] = set()
        self._bytes = 0
        # Whatever is on the way: a storage that is freed leaves its address to the next one.
        self._alive: List[Any] = []
        self.parameters, self.gradients = size(tensors), 0
        self.saved: Optional[int] = None

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """The length of one forward."""
        self._bytes = 0
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield
        self._kept.clear()
        self._alive.clear()
        self.saved = max(self.saved or 0, self._bytes)

    def _keep(self, tensor: Any) -> Any:
        place = _storage(tensor)
        if place and place not in self._known and place not in self._kept:
            self._kept.add(place)
            self._bytes += tensor.numel() * tensor.element_size()
            self._alive.append(tensor.detach())
        return tensor

    def now(self) -> int:
        """Return the bytes that are in use."""
        gradients = size(parameter.grad for parameter in self._model.parameters())
        self.gradients = max(self.gradients, gradients)
        return self.parameters + gradients + self._bytes


def _storage(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def size(tensors: Any) -> int:
    """Bytes of some tensors, None left out."""
    return sum(each.numel() * each.element_size() for each in tensors if each is not None)
