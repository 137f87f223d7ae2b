"""Adds up the traces of all ranks, one rank after the other, in memory that does not grow with ranks times steps.

What compares ranks within a step (whether they skipped the same layers, who was slowest) is exact: it is kept by
step, in a few numbers. All else is kept by columns of steps and rows of ranks (``grids``).
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from statistics import median
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpfix.cli.report import growth
from ddpfix.cli.report.grids import Grid, Mean, Piece, Series, Timeline, Values
from ddpfix.cli.report.growth import Growth, Peak, Peaks
from ddpfix.cli.report.logged import Logged
from ddpfix.trace import clean
from ddpfix.trace.reader import Run

SECONDS = ("total", "data", "forward", "backward", "wait", "optimizer")
SERIES = (*SECONDS, "sent", "padding", "loss", "norm", "reserved", "samples")
COLUMNS, ROWS = 400, 200
# Cells of all layers together, for which ranks by steps are kept a layer.
CELLS = 200_000
# A step in which a rank takes so many times its usual time for its own work is named; so many of them are kept.
_OUTLYING, _NAMED = 4.0, 20


class Outlier(NamedTuple):
    """A step that took a rank many times its usual time."""

    own: float
    usual: float
    step: int
    rank: int


class Step:
    """One step, as all ranks together had it."""

    __slots__ = ("every", "some", "ranks", "slowest", "who", "timed")

    def __init__(self) -> None:
        # Layers that every rank skipped and that some rank did, as bits; how many ranks say so.
        self.every, self.some, self.ranks = -1, 0, 0
        # The longest time of a rank's own, and whose it was; how many ranks say so.
        self.slowest, self.who, self.timed = -1.0, -1, 0


class Gathered:
    """All that a report needs of one run; :meth:`add` is called once for each rank that has files, in order."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self.per_row = -(-len(self.ranks) // ROWS)
        height = -(-len(self.ranks) // self.per_row)
        self.row_of = {rank: place // self.per_row for place, rank in enumerate(self.ranks)}
        self.timeline = Timeline(COLUMNS)
        # Of the ranks that share a row, the slowest: among many a straggler would be lost in the mean.
        self.own, self.waits = Grid(self.timeline, height, "max"), Mean(self.timeline, height)
        self.peak_rows = Grid(self.timeline, height, "max")
        self.peaks = Peaks(self.timeline)
        self.growth: Optional[Growth] = None
        self.series = {name: Series(self.timeline) for name in (*SERIES, "unused", "skipped")}
        self.steps: Dict[int, Step] = {}
        # The first step of each epoch.
        self.epochs: Dict[int, int] = {}
        # Of each rank, by part of a step: the mean, and the median, which a few long batches do not move.
        self.means: Dict[int, Dict[str, float]] = {}
        self.medians: Dict[int, Dict[str, float]] = {}
        self.step_counts: Dict[int, int] = {}
        # Steps that took a rank many times its median.
        self.outliers: List[Outlier] = []
        self.outliers_count = 0
        self.layers: List[str] = []
        self.parameters: List[str] = []
        self.layer_time: Optional[Timeline] = None
        self.layer_row_of: Dict[int, int] = {}
        # How often a layer was skipped, and how often it is known whether it was.
        self.layer_grids: List[Grid] = []
        self.layer_known: List[Grid] = []
        self.unused: Dict[int, Grid] = {}
        self.unused_known = Grid(self.timeline)
        # Rows that tell what was unused.
        self.unused_told = 0
        # Losses that are not a number: how many, and the first as (step, rank).
        self.lost, self.first_lost = 0, None  # type: int, Optional[Tuple[int, int]]
        self.last_step, self.rows, self.thinned = 0, 0, 1
        self.logged = Logged()

    def spans(self) -> List[Tuple[int, int]]:
        """Return the first and last rank of each row of ranks."""
        parts = [self.ranks[place : place + self.per_row] for place in range(0, len(self.ranks), self.per_row)]
        return [(part[0], part[-1]) for part in parts]

    def add(self, run: Run) -> None:
        self.logged.add(run)
        self._models(run)
        steps, columns = _sorted(run.steps)
        if steps:
            self._rows(run.rank, steps, columns)

    def _models(self, run: Run) -> None:
        """Take the names that indices of the steps are for: all models are numbered one after the other."""
        for model in run.models:
            for kind, names in (("layer", self.layers), ("parameter", self.parameters)):
                first = clean.whole(model.get(f"first_{kind}")) or 0
                # What another rank has told already stays; a number that leaves a gap is no number of this format.
                if first <= len(names):
                    names += clean.texts(model.get(f"{kind}s"))[len(names) - first :]

    def _rows(self, rank: int, steps: List[int], columns: Dict[str, List[Any]]) -> None:
        self.timeline.fit(steps[-1])
        self.last_step, self.rows = max(self.last_step, steps[-1]), self.rows + len(steps)
        pieces, row = self.timeline.pieces(steps), self.row_of[rank]
        weights = _weights(columns["every"])
        self.thinned = max(self.thinned, max(weights or [1]))
        values = {name: clean.numbers(columns[name]) for name in SERIES}
        # The first step of a process has what is done once: imports, buffers, compilation. It is no sample of a step.
        timed = _without_first(values, steps)
        own = [_own(*each) for each in zip(timed["total"], timed["wait"])]
        for name in SERIES:
            self.series[name].put(pieces, timed.get(name, values[name]), weights)
        self.own.put(row, [(column, n, n + 1) for n, (column, _, _) in enumerate(pieces)], _means(own, pieces), None)
        self.waits.put(row, pieces, timed["wait"], weights)
        self._memory(rank, row, steps, pieces, columns)
        self._add_up(rank, timed, own, weights)
        self._slowest(rank, steps, own)
        self._usual(rank, steps, own)
        self._loss(rank, steps, columns["loss"])
        for step, epoch in zip(reversed(steps), map(clean.whole, reversed(columns["epoch"]))):
            if epoch is not None and (epoch in self.epochs or len(self.epochs) < COLUMNS):
                self.epochs[epoch] = min(step, self.epochs.get(epoch, step))
        self._skipped(rank, steps, pieces, weights, [clean.indices(value) for value in columns["skipped"]])
        self._unused(pieces, weights, [clean.indices(value) for value in columns["unused"]])

    def _memory(
        self, rank: int, row: int, steps: List[int], pieces: Sequence[Piece], columns: Dict[str, List[Any]]
    ) -> None:
        peaks = clean.numbers(columns["peak"])
        self.peak_rows.put(row, pieces, peaks, None)
        shapes = list(map(clean.shape, columns["shape"]))
        found = growth.find(rank, steps, clean.numbers(columns["used"]), shapes)
        self.growth = max([each for each in (self.growth, found) if each is not None], default=None)
        most = -1.0
        for column, start, end in pieces:
            for place in range(start, end):
                peak = peaks[place]
                # The column is the most so far; what repeats it had no part in it.
                if peak is not None and peak > most:
                    most = peak
                    shape = shapes[place]
                    padding = clean.number(columns["padding"][place])
                    self.peaks.put(column, Peak(peak, steps[place], rank, shape, padding))

    def _add_up(self, rank: int, timed: Dict[str, Values], own: Values, weights: Optional[List[int]]) -> None:
        means, medians = self.means[rank], self.medians[rank] = {}, {}
        counts = weights or [1] * len(own)
        for name, values in (*_parts(timed).items(), ("total", timed["total"]), ("own", own)):
            pairs = sorted((value, weight) for value, weight in zip(values, counts) if value is not None)
            if pairs:
                whole = sum(weight for _, weight in pairs)
                means[name] = sum(value * weight for value, weight in pairs) / whole
                medians[name] = _median(pairs, whole) if weights else median(value for value, _ in pairs)
        self.step_counts[rank] = sum(counts)

    def _slowest(self, rank: int, steps: List[int], own: Values) -> None:
        for number, seconds in zip(steps, own):
            if seconds is not None:
                step = self._step(number)
                step.timed += 1
                if seconds > step.slowest:
                    step.slowest, step.who = seconds, rank

    def _usual(self, rank: int, steps: List[int], own: Values) -> None:
        usual = self.medians[rank].get("own", 0.0)
        timed = [(seconds, number) for seconds, number in zip(own, steps) if seconds is not None]
        found = [Outlier(own, usual, number, rank) for own, number in timed if own > _OUTLYING * usual > 0]
        self.outliers_count += len(found)
        self.outliers = sorted([*self.outliers, *found], reverse=True)[:_NAMED]

    def _step(self, number: int) -> Step:
        step = self.steps.get(number)
        if step is None:
            step = self.steps[number] = Step()
        return step

    def _loss(self, rank: int, steps: List[int], losses: List[Any]) -> None:
        for number, loss in zip(steps, losses):
            if isinstance(loss, float) and clean.number(loss) is None:
                self.lost += 1
                if self.first_lost is None or (number, rank) < self.first_lost:
                    self.first_lost = (number, rank)

    def _skipped(
        self,
        rank: int,
        steps: List[int],
        pieces: Sequence[Piece],
        weights: Optional[List[int]],
        skipped: List[Optional[List[int]]],
    ) -> None:
        if not any(each is not None for each in skipped):
            return
        most = max((index for each in skipped for index in each or ()), default=-1)
        self.layers += [f"layer {index}" for index in range(len(self.layers), most + 1)]
        if not self.layers:
            return
        self.series["skipped"].put(pieces, _lengths(skipped), weights)
        masks: Dict[Tuple[int, ...], int] = {}
        for number, each in zip(steps, skipped):
            if each is not None:
                key = tuple(each)
                if key not in masks:
                    masks[key] = sum(1 << index for index in set(each))
                mask, step = masks[key], self._step(number)
                step.every, step.some, step.ranks = step.every & mask, step.some | mask, step.ranks + 1
        pieces, row = self._layer_table(steps[-1]).pieces(steps), self.layer_row_of[rank]
        self.layer_known[0].put(row, pieces, _as_ones(skipped), weights)
        for column, start, end in pieces:
            for index, count in _counted(skipped, weights, start, end).items():
                self.layer_grids[index].rows[row][column] += count

    def _layer_table(self, last: int) -> Timeline:
        """Return the table of ranks by steps for each layer, of a size that all layers together can have."""
        if self.layer_time is None:
            height = min(len(self.ranks), 50)
            per_row = -(-len(self.ranks) // height)
            self.layer_row_of = {rank: place // per_row for place, rank in enumerate(self.ranks)}
            height = max(self.layer_row_of.values()) + 1
            self.layer_time = Timeline(max(50, min(COLUMNS, CELLS // (len(self.layers) * height))))
            self.layer_known.append(Grid(self.layer_time, height))
        self.layer_time.fit(last)
        while len(self.layer_grids) < len(self.layers):
            self.layer_grids.append(Grid(self.layer_time, len(self.layer_known[0].rows)))
        return self.layer_time

    def _unused(self, pieces: Sequence[Piece], weights: Optional[List[int]], unused: List[Optional[List[int]]]) -> None:
        if not any(each is not None for each in unused):
            return
        self.unused_told += sum(each is not None for each in unused)
        self.series["unused"].put(pieces, _lengths(unused), weights)
        self.unused_known.put(0, pieces, _as_ones(unused), weights)
        for column, start, end in pieces:
            for index, count in _counted(unused, weights, start, end).items():
                grid = self.unused.get(index)
                if grid is None:
                    grid = self.unused[index] = Grid(self.timeline)
                grid.rows[0][column] += count


def _means(values: Values, pieces: Sequence[Piece]) -> Values:
    """Return the mean of each piece."""
    parts = [[value for value in values[start:end] if value is not None] for _, start, end in pieces]
    return [sum(part) / len(part) if part else None for part in parts]


def _weights(every: List[Any]) -> Optional[List[int]]:
    """Return how many steps each row stands for; None if that is one."""
    found = [clean.whole(value, 1) or 1 for value in every]
    return found if max(found) > 1 else None


def _lengths(lists: Sequence[Optional[List[int]]]) -> Values:
    return [None if each is None else len(each) for each in lists]


def _as_ones(lists: Sequence[Optional[List[int]]]) -> Values:
    return [None if each is None else 1.0 for each in lists]


def _counted(
    lists: Sequence[Optional[List[int]]], weights: Optional[List[int]], start: int, end: int
) -> Dict[int, int]:
    """Return how many steps of a piece each index is in."""
    if weights is None:
        return Counter(chain.from_iterable(each for each in lists[start:end] if each))
    found: Dict[int, int] = {}
    for each, weight in zip(lists[start:end], weights[start:end]):
        for index in each or ():
            found[index] = found.get(index, 0) + weight
    return found


def _median(pairs: Sequence[Tuple[float, int]], whole: int) -> float:
    """Return the value in the middle of sorted ones, each with its weight."""
    left = whole / 2
    for value, weight in pairs:
        left -= weight
        if left <= 0:
            return value
    return pairs[-1][0]


def _parts(timed: Dict[str, Values]) -> Dict[str, Values]:
    """Return the parts of each step: the backward without its wait, and ``other``, which is in none of them."""
    found = {name: timed[name] for name in SECONDS if name != "total"}
    found["backward"] = [_own(one, wait or 0.0) for one, wait in zip(timed["backward"], timed["wait"])]
    rows = zip(*found.values())
    found["other"] = [_own(total, sum(part or 0.0 for part in row)) for total, row in zip(timed["total"], rows)]
    return found


def _own(total: Optional[float], wait: Optional[float]) -> Optional[float]:
    """Return a rank's own time, without the wait for others."""
    return None if total is None or wait is None else max(0.0, total - wait)


def _without_first(values: Dict[str, Values], steps: List[int]) -> Dict[str, Values]:
    first = 1 if len(steps) > 3 and steps[0] == 1 else 0
    return {name: [*[None] * first, *values[name][first:]] for name in SECONDS}


def _sorted(columns: Dict[str, List[Any]]) -> Tuple[List[int], Dict[str, List[Any]]]:
    """Return the rows that have a step, by step."""
    rows = [(step, place) for place, step in enumerate(columns["step"]) if clean.whole(step, 1) is not None]
    if len(rows) == len(columns["step"]) and all(one <= two for one, two in zip(rows, rows[1:])):
        return columns["step"], columns
    order = [place for _, place in sorted(rows)]
    picked = {name: [values[place] for place in order] for name, values in columns.items()}
    return picked["step"], picked
