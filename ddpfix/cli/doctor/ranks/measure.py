"""Two collectives, of a small tensor and of one as large as a bucket of DDP: values, and times."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from ddpfix import devices

# Bytes: a number, and what DDP sends at a time (bucket_cap_mb=25).
SMALL, LARGE = 4, 25 << 20
# (name, bytes, how often).
PLAN = (("all_reduce", SMALL, 10), ("all_reduce", LARGE, 5), ("barrier", 0, 10))
# Each rank gives one of this many different numbers: their sum is exact in float32 for two million ranks.
_NUMBERS = 7


class Times(NamedTuple):
    """One collective on one rank, in seconds.

    Attributes:
        correct: whether the values were right.
        least, median, most: of the repetitions.
    """

    correct: bool
    least: float
    median: float
    most: float


def title(name: str, size: int) -> str:
    """Return the name of a collective."""
    words = {0: "", SMALL: " of 4 B"}.get(size, f" of {size >> 20} MB")
    return f"{name}{words}"


def run(torch: Any, device: Any, rank: int, size: int, begin: Callable[[str], None]) -> Dict[str, Times]:
    """Measure all of the plan; each collective is run once before it is timed.

    Args:
        torch: the module.
        device: where the tensors are.
        rank: this rank.
        size: the world size.
        begin: called with the title of each collective before it.
    """
    found = {}
    for name, bytes_, often in PLAN:
        begin(title(name, bytes_))
        once = _barrier(torch) if name == "barrier" else _all_reduce(torch, device, rank, size, bytes_ // 4)
        results = [_timed(torch, device, once) for _ in range(often + 1)]
        times = [seconds for seconds, _ in results[1:]]
        correct = all(right for _, right in results)
        found[title(name, bytes_)] = Times(correct, min(times), statistics.median(times), max(times))
    return found


def _timed(torch: Any, device: Any, once: Callable[[], Callable[[], bool]]) -> Tuple[float, bool]:
    begun = time.perf_counter()
    check = once()
    devices.synchronize(device)
    seconds = time.perf_counter() - begun
    return seconds, check()


def expected_sum(size: int) -> int:
    """Return the sum of the ranks' numbers."""
    whole, rest = divmod(size, _NUMBERS)
    return whole * sum(range(1, _NUMBERS + 1)) + sum(range(1, rest + 1))


def _all_reduce(torch: Any, device: Any, rank: int, size: int, length: int) -> Callable[[], Callable[[], bool]]:
    tensor = torch.empty(length, dtype=torch.float32, device=device)
    right = float(expected_sum(size))

    def once() -> Callable[[], bool]:
        tensor.fill_(rank % _NUMBERS + 1)
        torch.distributed.all_reduce(tensor)
        return lambda: bool((tensor == right).all())

    return once


def _barrier(torch: Any) -> Callable[[], Callable[[], bool]]:
    def once() -> Callable[[], bool]:
        torch.distributed.barrier()
        return lambda: True

    return once


def together(by_rank: Dict[int, Dict[str, Times]], size: int) -> List[Dict[str, Any]]:
    """Return one entry a collective, over all ranks.

    Args:
        by_rank: what each rank has measured.
        size: the world size.
    """
    entries = []
    for name, bytes_, often in PLAN:
        own = {rank: times[title(name, bytes_)] for rank, times in by_rank.items() if title(name, bytes_) in times}
        if not own:
            continue
        median = statistics.median(times.median for times in own.values())
        slowest = max(own, key=lambda rank: own[rank].most)
        # The bytes that each rank has to send in a ring, as NCCL's tests count them.
        sent = bytes_ * 2 * (size - 1) / size
        entries.append(
            {
                "name": title(name, bytes_),
                "bytes": bytes_,
                "repetitions": often,
                "wrong_ranks": [rank for rank, times in sorted(own.items()) if not times.correct][:20],
                "min_ms": 1e3 * min(times.least for times in own.values()),
                "median_ms": 1e3 * median,
                "max_ms": 1e3 * own[slowest].most,
                "slowest_rank": slowest,
                "bus_gb_per_s": sent / median / 1e9 if bytes_ >= LARGE and median else None,
            }
        )
    return entries
