"""Plans of batches as plain lists of sample indices: limits that hold, and the same steps on all ranks.

Nothing here knows of FunASR or torch, and nothing draws from a global random stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Callable, Dict, Iterable, List, Optional, Sequence, TypeVar

T = TypeVar("T")
Batch = List[int]
Measure = Callable[[int], float]


# What became of an epoch's samples (the first four) and batches: samples left out that are longer or shorter than the
# toolkit's limit, that alone exceed the batch size, or that stand in a last batch that is not full (``drop_last``);
# batches that were over a limit and became several, that had no sample, that one rank got a second time, or that one
# rank left out, so that all ranks have as many.
KINDS = ("long", "short", "budget", "last", "split", "empty", "repeated", "cut")
Counts = Dict[str, int]


def counts() -> Counts:
    return dict.fromkeys(KINDS, 0)


@dataclass(frozen=True)
class Limits:
    """What a batch has to keep to; None stands for no limit.

    Attributes:
        length: how the toolkit measures a sample against ``longest`` and ``shortest``.
        cost: what a sample weighs in the batch size: its length, or 1 where samples are counted.
        budget: largest number of rows times the largest cost.
        frames: length of a sample in frames.
    """

    length: Measure
    longest: Optional[float]
    cost: Measure
    budget: Optional[float]
    frames: Measure
    shortest: Optional[float] = None

    def exceeded(self, rows: int, cost: float) -> bool:
        """Return whether a batch of so many rows with this largest cost is over its budget."""
        return self.budget is not None and rows * cost > self.budget

    def area(self, batch: Sequence[int]) -> float:
        """Return the size of attention for a batch: rows times squared number of frames."""
        return float(len(batch) * max(map(self.frames, batch)) ** 2)


def hold(batches: Iterable[Batch], limits: Limits, counts: Counts) -> List[Batch]:
    """Return the batches with their limits kept: nothing over-long, nothing empty, nothing over its budget.

    A batch that keeps to all limits stays the object that it is.
    """
    held: List[Batch] = []
    for batch in batches:
        if not batch:
            counts["empty"] += 1
            continue
        passing = _passing(batch, limits, counts)
        if passing and limits.exceeded(len(passing), max(map(limits.cost, passing))):
            parts = _greedy(passing, limits)
            counts["split"] += len(parts) > 1
            held.extend(parts)
        elif passing:
            held.append(passing)
    return held


def _passing(batch: Batch, limits: Limits, counts: Counts) -> Batch:
    """Return the samples of a batch that can be in any batch at all."""
    kept = []
    for index in batch:
        if limits.longest is not None and limits.length(index) > limits.longest:
            counts["long"] += 1
        elif limits.shortest is not None and limits.length(index) < limits.shortest:
            counts["short"] += 1
        elif limits.exceeded(1, limits.cost(index)):
            counts["budget"] += 1
        else:
            kept.append(index)
    return batch if len(kept) == len(batch) else kept


def _greedy(order: Iterable[int], limits: Limits) -> List[Batch]:
    """Batches of neighbours, each as large as the limits allow."""
    batches: List[Batch] = []
    cost = 0.0
    for index in order:
        cost = max(cost, limits.cost(index))
        if batches and not limits.exceeded(len(batches[-1]) + 1, cost):
            batches[-1].append(index)
        else:
            batches.append([index])
            cost = limits.cost(index)
    return batches


def filled(order: Sequence[int], buffer: int, limits: Limits, counts: Counts) -> List[Batch]:
    """Batches from samples that are sorted by length in each buffer of so many samples."""
    starts = range(0, len(order), max(1, buffer))
    parts = (sorted(order[start : start + buffer], key=limits.length) for start in starts)
    return _greedy((index for part in parts for index in _passing(part, limits, counts)), limits)


def whole_steps(batches: Sequence[Batch], ranks: int, seed: int, counts: Counts) -> List[Batch]:
    """Return the batches and, if the last step is not full, some of them a second time."""
    missing = -len(batches) % ranks if batches else 0
    counts["repeated"] += missing
    return evened(batches, len(batches) + missing, seed)


def evened(batches: Sequence[Batch], target: int, seed: int) -> List[Batch]:
    """Return as many batches as ``target`` says: the first ones, or all and some of them a second time.

    The repeated ones are different, as long as there are any.
    """
    random = Random(seed)
    given = list(batches[:target])
    while len(given) < target:
        given += random.sample(list(batches), min(len(batches), target - len(given)))
    return given


def mixed(batches: Sequence[Batch], ranks: int, seed: int, limits: Limits) -> List[Batch]:
    """Return the steps (``ranks`` batches each) in random order, so that lengths do not climb through the epoch.

    All ranks keep batches of similar length in each step. The step that needs most memory comes first: what does not
    fit fails at once, and the memory that the epoch needs is there from the first step on.
    """
    steps = [batches[start : start + ranks] for start in range(0, len(batches), ranks)]
    Random(seed).shuffle(steps)
    return [batch for step in _largest_first(steps, lambda step: max(map(limits.area, step))) for batch in step]


def largest_first(batches: Sequence[Batch], limits: Limits) -> List[Batch]:
    """Return the batches in their order, but for the one that needs most memory, which is first (:func:`mixed`)."""
    return _largest_first(batches, limits.area)


def _largest_first(parts: Sequence[T], size: Callable[[T], float]) -> List[T]:
    largest = max(range(len(parts)), key=lambda number: size(parts[number]), default=0)
    return [*parts[largest : largest + 1], *parts[:largest], *parts[largest + 1 :]]
