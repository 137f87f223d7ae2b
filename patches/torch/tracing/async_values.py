"""Values that a GPU computes: they are copied without a wait, and read some steps later, when they have come."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

# Values that may be under way at once.
_ROOM = 4096

Value = Callable[[], Optional[float]]


class Ring:
    """Memory on the host for values that come from one GPU."""

    def __init__(self) -> None:
        self._host = torch.zeros(_ROOM, dtype=torch.float64).pin_memory()
        self._next = 0

    def copy(self, tensor: Any) -> Value:
        """Have a number copied; the result gives it when it is there, and None before.

        Args:
            tensor: of one element, on a GPU.
        """
        slot = self._host[self._next % _ROOM]
        self._next += 1
        with torch.no_grad():
            slot.copy_(tensor.detach().reshape(()).to(torch.float64), non_blocking=True)
        event = mark(device=tensor.device)
        return lambda: float(slot) if event.query() else None


class Numbers:
    """The values of losses and norms, wherever they are computed."""

    def __init__(self) -> None:
        self._rings: Dict[int, Ring] = {}
        # What a gradient scaler was given last, and a weak reference to what it made of it.
        self._given: Any = None
        self._made: Optional[weakref.ref[Any]] = None

    def scaled(self, given: Any, made: Any) -> None:
        """A gradient scaler has made a larger loss of one."""
        if isinstance(made, torch.Tensor) and isinstance(given, torch.Tensor):
            self._given, self._made = given.detach(), weakref.ref(made)

    def of_loss(self, loss: Any) -> Any:
        """Return the value of a loss, before a gradient scaler made it larger; see :meth:`of`."""
        meant = self._given if self._made is not None and self._made() is loss else loss
        self._given = self._made = None
        return self.of(meant)

    def of(self, tensor: Any) -> Any:
        """Return the value of a tensor of one element: a number, a function that gives it later, or None."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.numel() != 1 or tensor.is_complex():
            return None
        if tensor.device.type == "cpu":
            return float(tensor.detach())
        if tensor.device.type != "cuda":
            return None
        index = int(tensor.device.index)
        if index not in self._rings:
            self._rings[index] = Ring()
        return self._rings[index].copy(tensor)


def mark(timed: bool = False, device: Any = None) -> Any:
    """Return an event on the current stream of a GPU; None: of the current one."""
    event = torch.cuda.Event(enable_timing=timed)
    # What a tensor's value is copied on is the stream of its own GPU, which the program need not have made current.
    event.record(torch.cuda.current_stream(device))
    return event


def between(begin: Any, end: Any) -> Value:
    """Return the seconds of the GPU between two events, once the second one is over."""
    return lambda: begin.elapsed_time(end) / 1000 if end.query() else None


def total(parts: Sequence[Any]) -> Any:
    """Return the sum of numbers and of values that come later; None of nothing."""
    if not parts:
        return None
    if not any(callable(part) for part in parts):
        return sum(parts)
    return _Sum(list(parts))


class _Sum:
    def __init__(self, parts: List[Any]) -> None:
        self._parts = parts

    def __call__(self) -> Optional[float]:
        for index, part in enumerate(self._parts):
            if callable(part):
                value = part()
                if value is None:
                    return None
                self._parts[index] = value
        return float(sum(self._parts))
