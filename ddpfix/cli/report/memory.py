"""Memory by step: its peaks with their batches, and the growth of a program that keeps something of each step."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

# Of numpy, whose types mypy is not asked for.
Array = Any
# Peaks that are listed.
_RECORDS = 25
# The first steps fill what is kept once: states of optimizers, caches of allocators.
_FIRST = 3
# Steps below which nothing is certain, and of those with a shape, how many have the usual one: an epoch ends with less.
_ENOUGH, _EQUAL = 10, 0.75
# Bytes that rise in all and in a step, at least. Parts of the usual rise that each quarter has, at least, and of the
# whole that one step may give back; and of the first half's rise, what the second has: caches fill ever slower.
_LEAST, _LEAST_A_STEP, _QUARTER, _BACK, _HALF = 2**25, 2**18, 0.3, 0.25, 0.55


class Peak(NamedTuple):
    """A step in which the memory was larger than ever before, and its batch."""

    step: int
    bytes: float
    rank: int
    shape: Optional[List[int]]


def peaks(rank: int, steps: Array, most: Array, shapes: Sequence[Optional[List[int]]]) -> List[Peak]:
    """Return the steps of a rank in which ``most``, the most memory so far, has risen."""
    # What repeats the number had no part in it.
    before = np.fmax.accumulate(np.concatenate([[-1.0], most[:-1]]))
    risen = np.flatnonzero(most > before).tolist()
    return [Peak(int(steps[place]), float(most[place]), rank, shapes[place]) for place in risen]


def records(of_ranks: Iterable[Peak]) -> List[Dict[str, Any]]:
    """Return the peaks that are higher than all of earlier steps: the first, the last, and those that rose most."""
    found: List[Dict[str, Any]] = []
    highest = 0.0
    for peak in sorted(of_ranks, key=lambda peak: (peak.step, -peak.bytes, peak.rank)):
        if not found or peak.bytes > highest:
            found.append({**peak._asdict(), "rise": peak.bytes - highest})
            highest = peak.bytes
    between = sorted(found[1:-1], key=lambda record: -record["rise"])[: _RECORDS - 2]
    return [each for each in found if each is found[0] or each is found[-1] or each in between]


class Growth(NamedTuple):
    """Bytes that one rank keeps of each step, from the first to the last one that are compared."""

    a_step: float
    rank: int
    first: Tuple[int, float]
    last: Tuple[int, float]
    shape: Sequence[int]


def growth(rank: int, steps: Array, used: Array, shapes: Sequence[Optional[Sequence[int]]]) -> Optional[Growth]:
    """Return the growth of a rank's memory; None where there is none, or it is not certain.

    Args:
        used: bytes in use at the end of each step; not a number where nobody looked.
        shapes: of the batch of each step.
    """
    batches = [tuple(shape) for step, shape in zip(steps, shapes) if step > _FIRST and shape]
    looked = (steps > _FIRST) & ~np.isnan(used)
    known, bytes = steps[looked], used[looked]
    if len(known) < _ENOUGH or len(batches) < (steps > _FIRST).sum():
        return None
    shape, times = Counter(batches).most_common(1)[0]
    if times < _EQUAL * len(batches) or max(map(math.prod, batches)) > math.prod(shape):
        return None
    quarters = [float(np.median(part)) for part in np.split(bytes, [len(known) * part // 4 for part in (1, 2, 3)])]
    whole, half = quarters[3] - quarters[0], len(known) // 2
    # The rise of a step, by least squares.
    a_step, first, second = (
        float(np.polyfit(known[part], bytes[part], 1)[0]) for part in (slice(None), slice(half), slice(half, None))
    )
    is_even = min(np.diff(quarters)) >= _QUARTER * whole / 3 and max(-np.diff(bytes)) <= _BACK * whole
    is_large = whole >= _LEAST and a_step >= _LEAST_A_STEP
    ends = [(int(known[place]), float(bytes[place])) for place in (0, -1)]
    return Growth(a_step, rank, ends[0], ends[1], shape) if is_even and is_large and second >= _HALF * first else None
