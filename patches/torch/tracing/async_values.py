"""Values that an accelerator computes: they are copied without a wait, and read some steps later, when they have come.

Only the thread that trains asks whether they have: it uses the device that the program chose, and knows when a graph is
captured.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence

import torch

from ddpfix import devices

# Values that may be under way at once, and rows that wait for some.
_ROOM, _ROWS = 4096, 1024

Value = Callable[[], Optional[float]]


class Ring:
    """Memory on the host for values of one type from one device; only one that has float64 has values of it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._host = torch.zeros(_ROOM, dtype=dtype).pin_memory()
        self._next = 0

    def copy(self, tensor: Any) -> Optional[Value]:
        """Have a number copied; the result gives it when it is there. None where no event of the device tells when."""
        slot = self._host[self._next % _ROOM]
        self._next += 1
        with torch.no_grad():
            slot.copy_(tensor.detach().reshape(()).to(slot.dtype), non_blocking=True)
        event = devices.event(tensor.device)
        return None if event is None else lambda: float(slot) if event.query() else None


class Numbers:
    """The values of losses and norms, wherever they are computed."""

    def __init__(self) -> None:
        self._rings: Dict[Any, Ring] = {}
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
        if not devices.is_accelerator(tensor.device):
            return None
        dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
        key = tensor.device, dtype
        if key not in self._rings:
            self._rings[key] = Ring(dtype)
        return self._rings[key].copy(tensor)


def moment(device: Any) -> Any:
    """Return this moment on a device: an event on an accelerator; None where it has none, and the time is unknown."""
    return devices.event(device, timed=True) if devices.is_accelerator(device) else time.perf_counter()


def between(begin: Any, device: Any) -> Any:
    """Return the seconds on a device from a moment to this one: those of an accelerator come later (:data:`Value`)."""
    end = moment(device)
    if isinstance(begin, float):
        return end - begin
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


class Pending:
    """The rows with values that have not come yet, the oldest one first."""

    def __init__(self) -> None:
        self._rows: Deque[Dict[str, Any]] = deque(maxlen=_ROWS)

    def add(self, row: Dict[str, Any]) -> None:
        """Follow a row if a value of it comes later."""
        if any(callable(value) for value in row.values()):
            self._rows.append(row)

    def settle(self) -> None:
        """Put the values that have come into their rows, where the writer finds them."""
        while self._rows and _is_settled(self._rows[0]):
            self._rows.popleft()


def _is_settled(row: Dict[str, Any]) -> bool:
    complete = True
    for name in [name for name, value in row.items() if callable(value)]:
        try:
            value = row[name]()
        except RuntimeError:
            # Events of two devices have no time between them: the number stays unknown.
            row[name] = None
            continue
        complete = complete and value is not None
        if value is not None:
            row[name] = value
    return complete
