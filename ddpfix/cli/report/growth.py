"""Memory by step: its peaks with their batches, and the growth of a program that keeps something of each step."""

from __future__ import annotations

import math
from collections import Counter
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ddpfix.cli.report.grids import Array

# The first steps fill what is kept once: states of optimizers, caches of allocators.
_FIRST = 3
# Steps below which nothing is certain, and of those with a shape, how many have the usual one: an epoch ends with less.
_ENOUGH, _EQUAL = 10, 0.75
# Bytes that rise in all and in a step, at least. Parts of the usual rise that each quarter has, at least, and of the
# whole that one step may give back; and of the first half's rise, what the second has: caches fill ever slower.
_LEAST, _LEAST_A_STEP, _QUARTER, _BACK, _HALF = 2**25, 2**18, 0.3, 0.25, 0.55


class Peak(NamedTuple):
    """A step in which the memory was larger than ever before, and its batch."""

    bytes: float
    step: int
    rank: int
    shape: Optional[List[int]]
    padding: Optional[float]


def records(peaks: Iterable[Peak]) -> List[Peak]:
    """Return those of the peaks that are higher than all of earlier steps, one a step."""
    found: List[Peak] = []
    for peak in sorted(peaks, key=lambda peak: (peak.step, -peak.bytes, peak.rank)):
        if not found or peak.bytes > found[-1].bytes:
            found.append(peak)
    return found


class Growth(NamedTuple):
    """Bytes that one rank keeps of each step, from the first to the last one that are compared."""

    a_step: float
    rank: int
    first: Tuple[int, float]
    last: Tuple[int, float]
    shape: Sequence[int]


def find(rank: int, steps: Sequence[int], used: Array, shapes: Sequence[Optional[Sequence[int]]]) -> Optional[Growth]:
    """Return the growth of a rank's memory; None where there is none, or it is not certain.

    Args:
        used: bytes in use at the end of each step; not a number where nobody looked.
        shapes: of the batch of each step.
    """
    batches = [tuple(shape) for step, shape in zip(steps, shapes) if step > _FIRST and shape]
    looked = (np.array(steps) > _FIRST) & ~np.isnan(used)
    known, bytes = np.array(steps)[looked], used[looked]
    if len(known) < _ENOUGH or len(batches) < sum(step > _FIRST for step in steps):
        return None
    shape, times = Counter(batches).most_common(1)[0]
    if times < _EQUAL * len(batches) or max(map(math.prod, batches)) > math.prod(shape):
        return None
    quarters = [float(np.median(part)) for part in np.split(bytes, [len(known) * part // 4 for part in (1, 2, 3)])]
    whole, half = quarters[3] - quarters[0], len(known) // 2
    a_step, first, second = (_slope(known[part], bytes[part]) for part in (slice(None), slice(half), slice(half, None)))
    is_even = min(np.diff(quarters)) >= _QUARTER * whole / 3 and max(-np.diff(bytes)) <= _BACK * whole
    is_large = whole >= _LEAST and a_step >= _LEAST_A_STEP
    ends = [(int(known[place]), float(bytes[place])) for place in (0, -1)]
    return Growth(a_step, rank, ends[0], ends[1], shape) if is_even and is_large and second >= _HALF * first else None


def _slope(steps: Array, bytes: Array) -> float:
    """Return the rise of a step, by least squares."""
    apart = steps - steps.mean()
    return float((apart * (bytes - bytes.mean())).sum() / (apart**2).sum())
