"""What only a card has, and what stands in its place where there is none, so that the same lines run on a CPU."""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager, nullcontext
from typing import Any, ContextManager, Iterator, List, Optional

import torch

from tests.gpu import world

_CYCLES = 10**8


def here() -> bool:
    return str(world.device().type) == "cuda"


@contextmanager
def side_stream() -> Iterator[None]:
    """A stream beside the current one, which comes after all that was given to that, and before what follows."""
    if not here():
        yield
        return
    outer, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(outer)
    with torch.cuda.stream(stream):
        yield
    outer.wait_stream(stream)


@functools.lru_cache(maxsize=None)
def cycles() -> float:
    """How many cycles of the card a second has; the first of two measurements is thrown away."""
    for _ in range(2):
        begun = time.perf_counter()
        torch.cuda._sleep(_CYCLES)
        torch.cuda.synchronize()
    return _CYCLES / (time.perf_counter() - begun)


def sleep(seconds: float) -> None:
    """Have the card do nothing for some time, while the host goes on."""
    if here():
        torch.cuda._sleep(int(seconds * cycles()))


def capture(mode: str, graph: Any = None) -> ContextManager[Any]:
    """A capture of a CUDA graph, which is thrown away if none is given; on a CPU its lines are run."""
    return torch.cuda.graph(graph or torch.cuda.CUDAGraph(), capture_error_mode=mode) if here() else nullcontext()


def contexts() -> Optional[List[int]]:
    """Devices on which this process holds a context, of half a gigabyte each; None where torch does not say."""
    has: Any = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has is None or not torch.cuda.is_available():
        return None
    return [number for number in range(torch.cuda.device_count()) if has(number)]


def peak() -> Optional[int]:
    return int(torch.cuda.max_memory_allocated(world.device())) if here() else None
