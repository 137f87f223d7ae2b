"""Memory by step: its peaks with their batches, and the growth of a program that keeps something of each step."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from ddpfix.cli.report.grids import Table, Timeline

# The first steps fill what is kept once: states of optimizers, caches of allocators.
_FIRST = 3
# Steps below which nothing is certain, and of those with a shape, how many have the usual one: an epoch ends with less.
_ENOUGH, _EQUAL = 10, 0.75
# Bytes that rise in all and in a step, at least. Parts of the usual rise that each quarter has, at least, and of the
# whole that one step may give back; and of the first half's rise, what the second has: caches fill ever slower.
_LEAST, _LEAST_A_STEP, _QUARTER, _BACK, _HALF = 2**25, 2**18, 0.3, 0.25, 0.55


class Peak(NamedTuple):
    """The most memory in a column of steps, and the batch of the step that reached it."""

    bytes: float
    step: int
    rank: int
    shape: Optional[List[int]]
    padding: Optional[float]


class Peaks(Table):
    """The step with the most memory in each column."""

    def __init__(self, timeline: Timeline) -> None:
        self.found: List[Optional[Peak]] = []
        timeline.add(self)

    def grow(self, columns: int) -> None:
        self.found.extend([None] * (columns - len(self.found)))

    def halve(self) -> None:
        pairs = [self.found[place : place + 2] for place in range(0, len(self.found), 2)]
        self.found = [_first_largest([peak for peak in pair if peak is not None]) for pair in pairs]

    def put(self, column: int, peak: Peak) -> None:
        there = self.found[column]
        if there is None or (peak.bytes, -peak.step, -peak.rank) > (there.bytes, -there.step, -there.rank):
            self.found[column] = peak


def _first_largest(peaks: List[Peak]) -> Optional[Peak]:
    return max(peaks, key=lambda peak: (peak.bytes, -peak.step, -peak.rank)) if peaks else None


class Growth(NamedTuple):
    """Bytes that one rank keeps of each step, from the first to the last one that are compared."""

    a_step: float
    rank: int
    first: Tuple[int, float]
    last: Tuple[int, float]
    shape: Sequence[int]


def find(rank: int, steps: Sequence[int], used: Sequence[Optional[float]], shapes: Sequence[Any]) -> Optional[Growth]:
    """Return the growth of a rank's memory; None where there is none, or it is not certain.

    Args:
        used: bytes in use at the end of each step; None where nobody looked.
        shapes: of the batch of each step.
    """
    batches = [tuple(shape) for step, shape in zip(steps, shapes) if step > _FIRST and shape]
    known = [(step, bytes) for step, bytes in zip(steps, used) if step > _FIRST and bytes is not None]
    if len(known) < _ENOUGH or len(batches) < sum(step > _FIRST for step in steps):
        return None
    shape, times = Counter(batches).most_common(1)[0]
    if times < _EQUAL * len(batches) or max(map(math.prod, batches)) > math.prod(shape):
        return None
    ends = [len(known) * part // 4 for part in range(5)]
    quarters = [median(bytes for _, bytes in known[first:end]) for first, end in zip(ends, ends[1:])]
    rises, whole = [later - before for before, later in zip(quarters, quarters[1:])], quarters[3] - quarters[0]
    back = max(before - later for (_, before), (_, later) in zip(known, known[1:]))
    halves, a_step = [_slope(known[: ends[2]]), _slope(known[ends[2] :])], _slope(known)
    is_even = min(rises) >= _QUARTER * whole / 3 and back <= _BACK * whole and halves[1] >= _HALF * halves[0]
    return Growth(a_step, rank, known[0], known[-1], shape) if is_even and _is_large(whole, a_step) else None


def _is_large(whole: float, a_step: float) -> bool:
    return whole >= _LEAST and a_step >= _LEAST_A_STEP


def _slope(part: Sequence[Tuple[int, float]]) -> float:
    """Return the rise of a step, by least squares."""
    middle, mean = sum(step for step, _ in part) / len(part), sum(bytes for _, bytes in part) / len(part)
    spread = sum((step - middle) ** 2 for step, _ in part)
    return sum((step - middle) * (bytes - mean) for step, bytes in part) / spread
