"""Plans of batches as plain lists of sample indices: limits that hold, and the same steps on all ranks.

Nothing here knows of FunASR or torch, and nothing draws from a global random stream.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random
from typing import Callable, Iterable, List, Optional, Sequence

Batch = List[int]
Measure = Callable[[int], float]


@dataclass
class Counts:
    """What became of an epoch's samples (the first four) and batches.

    Attributes:
        long: samples longer than the toolkit's limit, left out.
        short: samples shorter than the toolkit's limit, left out.
        budget: samples that alone exceed the batch size, left out.
        last: samples of a last batch that is not full, left out on request (``drop_last``).
        split: batches that were over a limit and became several.
        empty: batches without a sample, removed.
        repeated: batches that one rank got a second time, so that all ranks have as many.
        cut: batches that one rank left out, so that all ranks have as many.
    """

    long: int = 0
    short: int = 0
    budget: int = 0
    last: int = 0
    split: int = 0
    empty: int = 0
    repeated: int = 0
    cut: int = 0

    def numbers(self) -> List[int]:
        return [int(getattr(self, field.name)) for field in fields(self)]

    @classmethod
    def summed(cls, rows: Iterable[Sequence[int]]) -> Counts:
        return cls(*(sum(column) for column in zip(*rows)))

    def any(self) -> bool:
        return any(self.numbers())


@dataclass(frozen=True)
class Limits:
    """What a batch has to keep to; None stands for no limit.

    Attributes:
        length: how the toolkit measures a sample against ``longest``.
        longest: longest sample that may pass.
        shortest: shortest sample that may pass.
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

    def over(self, batch: Sequence[int]) -> bool:
        """Return whether a batch is over its budget."""
        return self.exceeded(len(batch), max(map(self.cost, batch)))

    def exceeded(self, rows: int, cost: float) -> bool:
        """Return the same for a batch of so many rows with this largest cost."""
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
            counts.empty += 1
            continue
        short = _passing(batch, limits, counts)
        parts = _split(short, limits)
        counts.split += len(parts) > 1
        held.extend(parts)
    return held


def _passing(batch: Batch, limits: Limits, counts: Counts) -> Batch:
    """Return the samples of a batch that can be in any batch at all."""
    kept = []
    for index in batch:
        if limits.longest is not None and limits.length(index) > limits.longest:
            counts.long += 1
        elif limits.shortest is not None and limits.length(index) < limits.shortest:
            counts.short += 1
        elif limits.budget is not None and limits.cost(index) > limits.budget:
            counts.budget += 1
        else:
            kept.append(index)
    return batch if len(kept) == len(batch) else kept


def _split(batch: Batch, limits: Limits) -> List[Batch]:
    if not batch:
        return []
    return [batch] if not limits.over(batch) else _greedy(batch, limits)


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
    missing = -len(batches) % ranks
    if not batches or not missing:
        return list(batches)
    counts.repeated += missing
    return [*batches, *again(batches, missing, seed)]


def again(batches: Sequence[Batch], count: int, seed: int) -> List[Batch]:
    """``count`` batches to be repeated: different ones, as long as there are any."""
    random = Random(seed)
    chosen: List[Batch] = []
    while len(chosen) < count:
        chosen.extend(random.sample(list(batches), min(len(batches), count - len(chosen))))
    return chosen


def mixed(batches: Sequence[Batch], ranks: int, seed: int, limits: Limits) -> List[Batch]:
    """Return the steps (``ranks`` batches each) in random order, so that lengths do not climb through the epoch.

    All ranks keep batches of similar length in each step. The step that needs most memory comes first: what does not
    fit fails at once, and the memory that the epoch needs is there from the first step on.
    """
    steps = [batches[start : start + ranks] for start in range(0, len(batches), ranks)]
    Random(seed).shuffle(steps)
    if steps:
        largest = max(range(len(steps)), key=lambda number: max(map(limits.area, steps[number])))
        steps.insert(0, steps.pop(largest))
    return [batch for step in steps for batch in step]


def largest_first(batches: Sequence[Batch], limits: Limits) -> List[Batch]:
    """Return the batches in their order, but for the one that needs most memory, which is first (:func:`mixed`)."""
    if not batches:
        return []
    largest = max(range(len(batches)), key=lambda number: limits.area(batches[number]))
    return [batches[largest], *batches[:largest], *batches[largest + 1 :]]


def evened(batches: Sequence[Batch], target: int, seed: int) -> List[Batch]:
    """As many batches as ``target`` says: the first ones, or all and some of them a second time."""
    if len(batches) >= target:
        return list(batches[:target])
    return [*batches, *again(batches, target - len(batches), seed)]
