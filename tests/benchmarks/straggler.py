"""How many layers are on the critical path of a step: the rank that runs most of them decides, the others wait."""

from __future__ import annotations

import random
from math import comb
from typing import List


def independent(layers: int, rate: float, ranks: int) -> float:
    """Expected layers of the busiest rank where each rank draws for itself.

    The number of layers that a rank runs is binomial, and the largest of them is at most k where each one is.
    """
    kept = 1.0 - rate
    mass = [comb(layers, k) * kept**k * rate ** (layers - k) for k in range(layers + 1)]
    below, expected, last = 0.0, 0.0, 0.0
    for number, probability in enumerate(mass):
        below = min(1.0, below + probability)
        all_below = below**ranks
        expected += number * (all_below - last)
        last = all_below
    return expected


def shared(layers: int, rate: float) -> float:
    """Expected layers where all ranks skip the same ones, whatever their number."""
    return layers * (1.0 - rate)


def simulated(layers: int, rate: float, ranks: int, steps: int, seed: int = 0) -> float:
    """The mean of the same over some random steps."""
    draw = random.Random(seed)
    busiest: List[int] = []
    for _ in range(steps):
        busiest.append(max(sum(draw.random() >= rate for _ in range(layers)) for _ in range(ranks)))
    return sum(busiest) / steps
