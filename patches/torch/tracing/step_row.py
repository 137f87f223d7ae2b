"""The row of the optimizer step that runs: what has been seen since the step before it."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple

import torch

from ddpfix import devices
from ddpfix.trace.writer import PENDING

# The parts of a step, as their columns are called; OTHER is what lies between them.
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = "data", "forward", "backward", "optimizer", "other"
# Seconds between two looks at the memory, which take some 12 microseconds, and 50 for each number of a GPU.
_MEMORY = 0.05
# More elements of a list than these are not looked at; and more rows than these do not wait for a number.
_MOST, _ROWS = 32, 1024


class StepRow:
    """Times and findings since the last step.

    Attributes:
        times: seconds by part.
        inner: seconds of forwards and backwards within the optimizer's step (a closure).
        waits: for other ranks in backwards: seconds, or the two events of an accelerator that have them between them.
        skipped: the numbers of skipped layers.
        unused: the numbers of parameters without a gradient.
        shape: of the largest tensor that a forward was given.
    """

    def __init__(self) -> None:
        self.times: Dict[str, float] = {}
        self.inner = 0.0
        self.backwards = 0
        self.waits: List[Any] = []
        self.skipped: Optional[List[int]] = None
        self.unused: Optional[List[int]] = None
        self.shape: Optional[List[int]] = None
        self._largest = -1

    def add(self, part: str, seconds: float) -> None:
        self.times[part] = self.times.get(part, 0.0) + seconds

    def fed(self, inputs: Any, kwargs: Any) -> bool:
        """Take the inputs of a forward; return whether they have the largest tensor of the step so far."""
        before = self._largest
        for tensor in _tensors(inputs, kwargs):
            if tensor.numel() > self._largest:
                self._largest, self.shape = tensor.numel(), list(tensor.shape)
        return self._largest > before

    def values(self, step: int, total: float) -> Dict[str, Any]:
        """Return the columns, as far as they are known."""
        # Tenths of a microsecond are noise, and digits are bytes.
        times = {part: round(seconds, 6) for part, seconds in {**self.times, "total": total}.items()}
        known = {"skipped": self.skipped, "unused": self.unused, "shape": self.shape}
        return {"step": step, "time": time.time(), **times, **known}


def _tensors(inputs: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, also one level inside of dictionaries and lists."""
    for value in (*inputs, *kwargs.values()):
        parts: Any = [value]
        if isinstance(value, (list, tuple)):
            parts = value[:_MOST]
        elif hasattr(value, "items"):
            parts = [each for _, each in list(value.items())[:_MOST]]
        yield from (part for part in parts if isinstance(part, torch.Tensor))


def moment(device: Any) -> Any:
    """Return this moment on a device: an event on an accelerator; None where it has none, and the time is unknown."""
    return devices.event(device, timed=True) if devices.is_accelerator(device) else time.perf_counter()


class Waits:
    """Puts waits into rows; those that an accelerator measures some steps later, when it has come so far.

    Only the thread that trains asks whether it has: it uses the device that the program chose, and knows when a graph
    is captured.
    """

    def __init__(self) -> None:
        self._rows: Deque[Tuple[Dict[str, Any], List[Any]]] = deque(maxlen=_ROWS)

    def put(self, row: Dict[str, Any], waits: List[Any]) -> None:
        if any(isinstance(each, tuple) for each in waits):
            row["wait"] = PENDING
            self._rows.append((row, waits))
        elif waits:
            row["wait"] = sum(waits)

    def settle(self) -> None:
        """Put the waits that have come into their rows, where the writer finds them."""
        while self._rows:
            row, waits = self._rows[0]
            events = [each for each in waits if isinstance(each, tuple)]
            try:
                if not all(end.query() for _, end in events):
                    return
                seconds = sum(each for each in waits if not isinstance(each, tuple))
                row["wait"] = seconds + sum(begin.elapsed_time(end) for begin, end in events) / 1000
            except RuntimeError:
                # Events of two devices have no time between them: the number stays unknown.
                row["wait"] = None
            self._rows.popleft()


class Memory:
    """The memory that the training uses: of its device, or of this process where that is the host."""

    def __init__(self) -> None:
        self._looked = 0.0
        self._found: Dict[str, Any] = {}

    def columns(self, now: float, device: Any) -> Dict[str, Any]:
        """``peak``, ``used`` and ``reserved``, as far as they are known; at most some milliseconds old."""
        if now - self._looked < _MEMORY:
            # An older number is true of the most so far alone.
            return {name: number for name, number in self._found.items() if name != "used"}
        self._looked = now
        if devices.is_accelerator(device):
            # What the process itself has in the host's memory says nothing of a device that has no numbers.
            self._found = {
                "peak": devices.peak_memory(device),
                "used": devices.used_memory(device),
                "reserved": devices.reserved_memory(device),
            }
        else:
            self._found = _of_process()
        return self._found


def _of_process() -> Dict[str, Any]:
    try:
        import resource
    except ImportError:
        return {}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = None
    try:
        # The bytes that belong to this process alone: pages of files come and go as the system likes.
        with open("/proc/self/statm", "rb") as file:
            resident, shared = map(int, file.read().split()[1:3])
        # torch's libraries are files: where none counts, the system does not tell them apart.
        used = (resident - shared) * resource.getpagesize() if shared else None
    except (OSError, ValueError):
        pass
    # macOS has bytes, others have kibibytes.
    return {"peak": most if sys.platform == "darwin" else most * 1024, "used": used}
