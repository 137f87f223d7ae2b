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
# Bytes that rise in all and in a step, at least; how even the rise is from quarter to quarter: caches fill ever slower.
_LEAST, _LEAST_A_STEP, _EVEN = 2**25, 2**18, 0.7


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
    quarters = [_middle(known[len(known) * part // 4 : len(known) * (part + 1) // 4]) for part in range(4)]
    rises = [later[1] - before[1] for before, later in zip(quarters, quarters[1:])]
    whole = quarters[3][1] - quarters[0][1]
    a_step = whole / (quarters[3][0] - quarters[0][0])
    if whole < _LEAST or a_step < _LEAST_A_STEP or min(rises) < _EVEN * whole / 3:
        return None
    return Growth(a_step, rank, known[0], known[-1], shape)


def _middle(part: List[Tuple[int, float]]) -> Tuple[float, float]:
    return median(step for step, _ in part), median(bytes for _, bytes in part)
