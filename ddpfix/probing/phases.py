"""Peak memory of the phases of a step: on an accelerator from its allocator, else of the process when it is sampled."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Optional, Set

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
    """

    def __init__(self) -> None:
        self.device: Any = None
        self._peaks: Dict[str, int] = {}
        self.phase = ""

    def enter(self, phase: str) -> None:
        """A phase begins, and the one before it ends; "" is none of them."""
        self.look()
        if self._is_on_device():
            devices.forget_peak(self.device)
        self.phase = phase
        self.look()

    def look(self) -> None:
        """Take the memory of this moment (on an accelerator, the peak since the phase began) into account."""
        if not self.phase:
            return
        now = devices.peak_memory(self.device) if self._is_on_device() else resident()
        if now is not None:
            self._peaks[self.phase] = max(self._peaks.get(self.phase, 0), int(now))

    def _is_on_device(self) -> bool:
        return self.device is not None and devices.is_accelerator(self.device)

    def memory(self) -> Optional[Memory]:
        """Return the peaks; None where nothing is known."""
        if not self._peaks:
            return None
        found = Memory("device" if self._is_on_device() else "resident")
        found.forward, found.backward = self._peaks.get("forward"), self._peaks.get("backward")
        found.optimizer = self._peaks.get("optimizer")
        return found


class Saved:
    """Counts the tensors that a forward keeps for its backward; each storage once, and parameters not at all."""

    def __init__(self, model: Any) -> None:
        self._known: Set[int] = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._kept: Dict[int, int] = {}
        # Whatever is on the way: a storage that is freed leaves its address to the next one.
        self._alive: list[Any] = []

    def counted(self) -> contextlib.AbstractContextManager[Any]:
        """Return the length of one forward."""
        context: Any = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        return context  # type: ignore[no-any-return]

    def _keep(self, tensor: Any) -> Any:
        place = _storage(tensor)
        if place and place not in self._known and place not in self._kept:
            self._kept[place] = tensor.numel() * tensor.element_size()
            self._alive.append(tensor.detach())
        return tensor

    def take(self) -> int:
        """Return the bytes since the last call."""
        total = sum(self._kept.values())
        self._kept.clear()
        self._alive.clear()
        return total


def _storage(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def size(tensors: Any) -> int:
    """Bytes of some tensors, None left out."""
    return sum(each.numel() * each.element_size() for each in tensors if each is not None)
