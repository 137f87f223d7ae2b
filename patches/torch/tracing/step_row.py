"""The row of the optimizer step that runs: what has been seen since the step before it."""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any, Dict, List, Optional

from ddpfix import devices
from ddpfix.trace import schema

from ..internals import loaders
from . import async_values, batch_shape

# Seconds between two looks at the memory, which take some 12 microseconds, and 50 for each number of a GPU.
_MEMORY = 0.05


class StepRow:
    """Times and findings since the last step.

    Attributes:
        times: seconds by place.
        inner: seconds of forwards and backwards within the optimizer's step (a closure).
        waits: seconds in which backwards waited for other ranks.
        norm: what ``clip_grad_norm_`` returned last.
        skipped: the numbers of skipped layers.
        unused: the numbers of parameters without a gradient.
        samples: of the batches, where loaders tell.
        sent: bytes of gradients that were communicated; None where no model is under DDP.
    """

    def __init__(self) -> None:
        self.times: Dict[str, float] = {}
        self.inner = 0.0
        self.backwards = 0
        self.losses: List[Any] = []
        self.waits: List[Any] = []
        self.norm: Any = None
        self.skipped: Optional[List[int]] = None
        self.unused: Optional[List[int]] = None
        self.sent: Optional[int] = None
        self.seen = batch_shape.LastBatch()
        self.samples: Optional[int] = None

    def add(self, place: str, seconds: float) -> None:
        self.times[place] = self.times.get(place, 0.0) + seconds

    def values(self, step: int, total: float) -> Dict[str, Any]:
        """Return the columns, as far as they are known."""
        times = self.times
        return {
            "step": step,
            "micro": self.backwards,
            "time": time.time(),
            "total": _rounded(total),
            "data": _rounded(times.get(schema.DATA)),
            "forward": _rounded(times.get(schema.FORWARD)),
            "backward": _rounded(times.get(schema.BACKWARD)),
            "wait": async_values.total(self.waits),
            "optimizer": _rounded(times.get(schema.OPTIMIZER)),
            "skipped": self.skipped,
            "unused": self.unused,
            "sent": self.sent,
            "shape": self.seen.shape,
            "samples": self.samples,
            "padding": _rounded(self.seen.padding),
            "loss": async_values.total(self.losses),
            "norm": self.norm,
        }


def add_step(values: Dict[str, Any], seconds: float, row: StepRow) -> None:
    """Add a further optimizer of one step to the columns that the first one has left."""
    values["total"] = round(values["total"] + seconds, 6)
    values["optimizer"] = round((values["optimizer"] or 0.0) + row.times.get(schema.OPTIMIZER, 0.0), 6)
    values["time"] = time.time()


def _rounded(seconds: Optional[float]) -> Optional[float]:
    # Tenths of a microsecond are noise, and digits are bytes.
    return None if seconds is None else round(seconds, 6)


class Memory:
    """The memory that the training uses: of its device, or of this process where that is the host."""

    def __init__(self) -> None:
        self._looked = 0.0
        self._found: Dict[str, Any] = {}

    def columns(self, now: float, device: Any) -> Dict[str, Any]:
        """``peak``, ``used`` and ``reserved``, as far as they are known; at most some milliseconds old."""
        if now - self._looked >= _MEMORY:
            self._looked = now
            self._found = _of_device(device) if devices.is_accelerator(device) else _of_process()
            return self._found
        # An older number is true of the most so far alone.
        return {name: number for name, number in self._found.items() if name != "used"}


def _of_device(device: Any) -> Dict[str, Any]:
    # What the process itself has in the host's memory says nothing of a device that has no numbers.
    return {
        "peak": devices.peak_memory(device),
        "used": devices.used_memory(device),
        "reserved": devices.reserved_memory(device),
    }


def _of_process() -> Dict[str, Any]:
    try:
        import resource
    except ImportError:
        return {}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS has bytes, others have kibibytes.
    return {"peak": most if sys.platform == "darwin" else most * 1024, "used": _private(resource.getpagesize())}


def _private(page: int) -> Optional[int]:
    """Return the bytes that belong to this process alone: pages of files come and go as the system likes."""
    try:
        with open("/proc/self/statm", "rb") as file:
            resident, shared = map(int, file.read().split()[1:3])
    except (OSError, ValueError):
        return None
    # torch's libraries are files: where none counts, the system does not tell them apart.
    return (resident - shared) * page if shared else None


class Epochs:
    """The epoch of the sampler behind the batch that was read last, and the samples of that batch."""

    def __init__(self) -> None:
        self._iterator: Optional[weakref.ref[Any]] = None
        self._length: Optional[int] = None
        self._samples: Optional[int] = None

    def read(self, iterator: Any) -> None:
        """A batch comes from an iterator of a loader."""
        if self._iterator is None or self._iterator() is not iterator:
            self._iterator, self._length = weakref.ref(iterator), loaders.length_of(iterator)
        # Of an evaluation only the last one stays, and the next batch of the training replaces it.
        self._samples = None if self._length is None else loaders.samples_of(iterator, self._length)

    def take(self) -> Optional[int]:
        """Return the samples of the batch that was read last, once; None where they are not known."""
        found, self._samples = self._samples, None
        return found

    def now(self) -> Optional[int]:
        found = loaders.sampler_of(self._iterator() if self._iterator is not None else None)
        for _ in range(4):
            epoch = getattr(found, "epoch", None)
            if isinstance(epoch, int):
                return epoch
            inner = getattr(found, "batch_sampler", None)
            found = getattr(found, "sampler", None) if inner is None else inner
        return None
