"""Adds up the traces of all ranks, one rank after the other, in memory that does not grow with ranks times steps.

What compares ranks within a step (whether they skipped the same layers, who was slowest) is exact: it is kept by
step, in a few numbers. All else is kept by columns of steps and rows of ranks (``grids``).
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ddpfix.cli.report import growth
from ddpfix.cli.report.grids import Array, Grid, Mean, Series, Timeline, divided
from ddpfix.cli.report.growth import Growth, Peak
from ddpfix.cli.report.logged import Logged
from ddpfix.trace import clean
from ddpfix.trace.reader import Run

SECONDS = ("total", "data", "forward", "backward", "wait", "optimizer")
SERIES = (*SECONDS, "sent", "padding", "loss", "norm", "reserved", "samples")
COLUMNS, ROWS = 400, 200
# Rows of all layers together, each with some ranks; layers that are known.
LAYER_ROWS, LAYERS = 96, 4096
# A step in which a rank takes so many times its usual time for its own work is named.
OUTLYING = 4.0
Lists = Sequence[Optional[List[int]]]


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


class Rows:
    """Which ranks share a row of a table: neighbours, so that there are at most so many rows."""

    def __init__(self, ranks: Sequence[int], most: int) -> None:
        size = -(-len(ranks) // most)
        parts = [ranks[place : place + size] for place in range(0, len(ranks), size)]
        #: The first and last rank of each row.
        self.spans = [(part[0], part[-1]) for part in parts]
        self.of = {rank: row for row, part in enumerate(parts) for rank in part}


class Layers:
    """How often each layer was skipped, by rows of ranks and columns of steps."""

    def __init__(self, timeline: Timeline, ranks: Sequence[int], layers: int) -> None:
        self.rows = Rows(ranks, max(1, LAYER_ROWS // layers))
        self.height = len(self.rows.spans)
        # How often it is known whether layers were skipped; the rows of a layer lie beside each other.
        self.known, self._skipped = Grid(timeline, self.height), Grid(timeline, self.height * layers)

    def put(self, rank: int, columns: Array, lists: Lists, weights: Array) -> None:
        row = self.rows.of[rank]
        self.known.put(row, columns, np.where([each is None for each in lists], np.nan, weights))
        indices, places = _flat(lists)
        self._skipped.grow(self.height * (max(indices, default=0) + 1))
        self._skipped.put(indices * self.height + row, columns[places], weights[places])

    def skipped(self, layers: int) -> Array:
        """Return the table: layers by rows by columns."""
        self._skipped.grow(layers * self.height)
        cells = self._skipped.cells[: layers * self.height]
        return cells.reshape(layers, self.height, cells.shape[1])


class Gathered:
    """All that a report needs of one run; :meth:`add` is called once for each rank that has files, in order."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks, self.rank_rows = list(ranks), Rows(list(ranks), ROWS)
        self.timeline, height = Timeline(COLUMNS), len(self.rank_rows.spans)
        # Of the ranks that share a row, the slowest: among many a straggler would be lost in the mean.
        self.own, self.waits = Grid(self.timeline, height, np.fmax), Mean(self.timeline, height)
        self.peak_rows = Grid(self.timeline, height, np.fmax)
        self.peaks: List[Peak] = []
        self.growth: Optional[Growth] = None
        self.series = {name: Series(self.timeline) for name in (*SERIES, "unused", "skipped")}
        self.steps: Dict[int, Step] = {}
        # The first step of each epoch.
        self.epochs: Dict[int, int] = {}
        # Of each rank, by part of a step: the mean, and the median, which a few long batches do not move.
        self.means: Dict[int, Dict[str, float]] = {}
        self.medians: Dict[int, Dict[str, float]] = {}
        self.step_counts: Dict[int, int] = {}
        # How many steps took a rank many times its median, and the longest one.
        self.outliers, self.worst = 0, None  # type: int, Optional[Outlier]
        self.layers: List[str] = []
        self.parameters: List[str] = []
        self.skipped: Optional[Layers] = None
        # Parameters that had no gradient: the row of each in the table of how often.
        self.unused_rows: Dict[int, int] = {}
        self.unused, self.unused_known = Grid(self.timeline), Grid(self.timeline)
        # Rows that tell what was unused.
        self.unused_told = 0
        # Losses that are not a number: how many, and the first as (step, rank).
        self.lost, self.first_lost = 0, None  # type: int, Optional[Tuple[int, int]]
        self.last_step, self.rows, self.thinned = 0, 0, 1
        self.logged = Logged()

    def add(self, run: Run) -> None:
        self.logged.add(run)
        self._models(run)
        steps, rows = _sorted(run.steps)
        if steps:
            self._rows(run.rank, steps, rows)

    def _models(self, run: Run) -> None:
        """Take the names that indices of the steps are for: all models are numbered one after the other."""
        for model in run.models:
            for kind, names in (("layer", self.layers), ("parameter", self.parameters)):
                first = clean.whole(model.get(f"first_{kind}")) or 0
                # What another rank has told already stays; a number that leaves a gap is no number of this format.
                if first <= len(names):
                    names += clean.texts(model.get(f"{kind}s"))[len(names) - first :]
        del self.layers[LAYERS:]

    def _rows(self, rank: int, steps: List[int], rows: Dict[str, List[Any]]) -> None:
        columns, row = self.timeline.columns(steps), self.rank_rows.of[rank]
        self.last_step, self.rows = max(self.last_step, steps[-1]), self.rows + len(steps)
        # How many steps each row stands for.
        weights = np.array([clean.whole(value, 1) or 1 for value in rows["every"]], dtype=float)
        self.thinned = max(self.thinned, int(weights.max()))
        values = {name: _array(rows[name]) for name in SERIES}
        if len(steps) > 3 and steps[0] == 1:
            # The first step of a process has what is done once (imports, buffers, compilation): no sample of a step.
            for name in SECONDS:
                values[name][0] = np.nan
        own = np.maximum(0.0, values["total"] - values["wait"])
        for name in SERIES:
            self.series[name].put(columns, values[name], weights)
        is_own = ~np.isnan(own)
        means = divided(np.bincount(columns, np.where(is_own, own, 0.0)), np.bincount(columns, is_own))
        self.own.put(row, np.arange(len(means)), means)
        self.waits.put(row, columns, values["wait"], weights)
        self._memory(rank, row, steps, columns, rows)
        self._add_up(rank, values, own, weights)
        self._slowest(rank, steps, own)
        self._loss(rank, steps, rows["loss"])
        for step, epoch in zip(reversed(steps), map(clean.whole, reversed(rows["epoch"]))):
            if epoch is not None and (epoch in self.epochs or len(self.epochs) < COLUMNS):
                self.epochs[epoch] = min(step, self.epochs.get(epoch, step))
        self._skipped(rank, steps, columns, weights, rows["skipped"])
        self._unused(columns, weights, rows["unused"])

    def _memory(self, rank: int, row: int, steps: List[int], columns: Array, rows: Dict[str, List[Any]]) -> None:
        peaks, shapes = _array(rows["peak"]), list(map(clean.shape, rows["shape"]))
        self.peak_rows.put(row, columns, peaks)
        found = growth.find(rank, steps, _array(rows["used"]), shapes)
        self.growth = max([each for each in (self.growth, found) if each is not None], default=None)
        # A row has the most so far; what repeats it had no part in it.
        before = np.fmax.accumulate(np.concatenate([[-1.0], peaks[:-1]]))
        risen = [
            Peak(float(peaks[place]), steps[place], rank, shapes[place], clean.number(rows["padding"][place]))
            for place in np.flatnonzero(peaks > before)
        ]
        self.peaks = growth.records([*self.peaks, *risen])

    def _add_up(self, rank: int, values: Dict[str, Array], own: Array, weights: Array) -> None:
        means, medians = self.means[rank], self.medians[rank] = {}, {}
        for name, found in (*_parts(values).items(), ("total", values["total"]), ("own", own)):
            known = ~np.isnan(found)
            if known.any():
                means[name] = float(np.average(found[known], weights=weights[known]))
                medians[name] = _median(found[known], weights[known])
        self.step_counts[rank] = int(weights.sum())

    def _slowest(self, rank: int, steps: List[int], own: Array) -> None:
        usual = self.medians[rank].get("own", 0.0)
        for number, seconds in zip(steps, own.tolist()):
            if seconds == seconds:
                step = self._step(number)
                step.timed += 1
                if seconds > step.slowest:
                    step.slowest, step.who = seconds, rank
                if seconds > OUTLYING * usual > 0:
                    self.outliers += 1
                    self.worst = max(filter(None, [self.worst, Outlier(seconds, usual, number, rank)]))

    def _step(self, number: int) -> Step:
        step = self.steps.get(number)
        if step is None:
            step = self.steps[number] = Step()
        return step

    def _loss(self, rank: int, steps: List[int], losses: List[Any]) -> None:
        lost = [(n, rank) for n, loss in zip(steps, losses) if isinstance(loss, float) and clean.number(loss) is None]
        self.lost += len(lost)
        self.first_lost = min([*lost[:1], *([self.first_lost] if self.first_lost else [])], default=None)

    def _skipped(self, rank: int, steps: List[int], columns: Array, weights: Array, column: List[Any]) -> None:
        skipped = [None if each is None else [i for i in each if i < LAYERS] for each in map(clean.indices, column)]
        most = max((index for each in skipped for index in each or ()), default=-1)
        self.layers += [f"layer {index}" for index in range(len(self.layers), most + 1)]
        if not self.layers or not any(each is not None for each in skipped):
            return
        self.series["skipped"].put(columns, _lengths(skipped), weights)
        masks: Dict[Tuple[int, ...], int] = {}
        for number, each in zip(steps, skipped):
            if each is not None:
                key = tuple(each)
                if key not in masks:
                    masks[key] = sum(1 << index for index in set(each))
                mask, step = masks[key], self._step(number)
                step.every, step.some, step.ranks = step.every & mask, step.some | mask, step.ranks + 1
        if self.skipped is None:
            self.skipped = Layers(self.timeline, self.ranks, len(self.layers))
        self.skipped.put(rank, columns, skipped, weights)

    def _unused(self, columns: Array, weights: Array, column: List[Any]) -> None:
        unused = list(map(clean.indices, column))
        lengths = _lengths(unused)
        self.unused_told += int((~np.isnan(lengths)).sum())
        self.series["unused"].put(columns, lengths, weights)
        self.unused_known.put(0, columns, np.where(np.isnan(lengths), np.nan, weights))
        indices, places = _flat(unused)
        for index in np.unique(indices).tolist():
            self.unused_rows.setdefault(index, len(self.unused_rows))
        self.unused.grow(len(self.unused_rows))
        rows = np.array([self.unused_rows[index] for index in indices.tolist()], dtype=np.int64)
        self.unused.put(rows, columns[places], weights[places])


def _array(values: Sequence[Any]) -> Array:
    """Return numbers as an array: not a number where there is none."""
    return np.array(clean.numbers(values), dtype=float)


def _lengths(lists: Lists) -> Array:
    return _array([None if each is None else len(each) for each in lists])


def _flat(lists: Lists) -> Tuple[Array, Array]:
    """Return the numbers of all lists, and of each the place of its list."""
    places: Array = np.repeat(np.arange(len(lists)), [len(each or ()) for each in lists])
    return np.array([index for each in lists for index in each or ()], dtype=np.int64), places


def _median(values: Array, weights: Array) -> float:
    """Return the value in the middle, where each counts as often as it stands for a step."""
    if weights.max() == 1:
        return float(np.median(values))
    order = np.argsort(values)
    whole = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(whole, whole[-1] / 2)])


def _parts(values: Dict[str, Array]) -> Dict[str, Array]:
    """Return the parts of each step: the backward without its wait, and ``other``, which is in none of them."""
    found = {name: values[name] for name in SECONDS if name != "total"}
    found["backward"] = np.maximum(0.0, values["backward"] - np.nan_to_num(values["wait"]))
    found["other"] = np.maximum(0.0, values["total"] - sum(np.nan_to_num(each) for each in found.values()))
    return found


def _sorted(columns: Dict[str, List[Any]]) -> Tuple[List[int], Dict[str, List[Any]]]:
    """Return the rows that have a step, by step."""
    order: Iterable[int] = range(len(columns["step"]))
    known = [place for place in order if clean.whole(columns["step"][place], 1) is not None]
    order = sorted(known, key=lambda place: columns["step"][place])
    picked = {name: [values[place] for place in order] for name, values in columns.items()}
    return picked["step"], picked
