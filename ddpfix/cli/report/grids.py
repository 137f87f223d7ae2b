"""Tables over steps whose size does not grow with the number of steps.

All ranks of a run are added one after the other, and the number of steps is not known before the last of them, so a
timeline begins with one step a column. Where a step lies beyond its last column, each two columns become one.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

# Of numpy, whose types mypy is not asked for.
Array = Any


class Timeline:
    """The columns that several tables share: ``width`` steps each, at most ``limit`` (an even number) of them."""

    def __init__(self, limit: int) -> None:
        self.limit, self.width, self.count = limit, 1, 0
        self.grids: List[Grid] = []

    def columns(self, steps: Sequence[int]) -> Array:
        """Return the column of each step, and make room for all of them; they are in order, and begin with 1."""
        while (steps[-1] - 1) // self.width >= self.limit:
            self.width *= 2
            self.count = (self.count + 1) // 2
            for grid in self.grids:
                grid.halve()
        self.count = max(self.count, (steps[-1] - 1) // self.width + 1)
        return (np.array(steps, dtype=np.int64) - 1) // self.width

    def spans(self) -> List[Tuple[int, int]]:
        """Return the first and last step of each column."""
        return [(column * self.width + 1, (column + 1) * self.width) for column in range(self.count)]


class Grid:
    """Rows by columns of numbers: the sum, or the largest, or the smallest of what was put into a cell."""

    def __init__(self, timeline: Timeline, rows: int = 1, how: Any = np.add) -> None:
        self._how, self._empty = how, 0.0 if how is np.add else np.nan
        self._timeline, self._cells = timeline, np.full((rows, timeline.limit), self._empty)
        timeline.grids.append(self)

    @property
    def cells(self) -> Array:
        """What was put in; nothing is 0 in a sum, and else not a number."""
        return self._cells[:, : self._timeline.count]

    def halve(self) -> None:
        half = self._how(self._cells[:, ::2], self._cells[:, 1::2])
        self._cells[:] = self._empty
        self._cells[:, : half.shape[1]] = half

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        missing = rows - len(self._cells)
        if missing > 0:
            # At least half as many more: rows come one by one.
            more = np.full((max(missing, len(self._cells) // 2), self._timeline.limit), self._empty)
            self._cells = np.concatenate([self._cells, more])

    def put(self, rows: Any, columns: Array, values: Array) -> None:
        """Add each value to the cell of its column; what is not a number is left out.

        Args:
            rows: of each value, or one for all.
        """
        known = ~np.isnan(values)
        self._how.at(self._cells, (np.broadcast_to(rows, known.shape)[known], columns[known]), values[known])


class Mean:
    """Rows by columns: the mean of what was put into a cell, weighted by the steps that each value stands for."""

    def __init__(self, timeline: Timeline, rows: int = 1) -> None:
        self.sums, self.weights = Grid(timeline, rows), Grid(timeline, rows)

    def put(self, row: int, columns: Array, values: Array, weights: Array) -> None:
        self.sums.put(row, columns, values * weights)
        self.weights.put(row, columns, np.where(np.isnan(values), np.nan, weights))

    def values(self) -> Array:
        return divided(self.sums.cells, self.weights.cells)


class Series:
    """One value a step: its mean, smallest and largest over the ranks and steps of a column."""

    def __init__(self, timeline: Timeline) -> None:
        self.mean, self.low, self.high = Mean(timeline), Grid(timeline, how=np.fmin), Grid(timeline, how=np.fmax)

    def put(self, columns: Array, values: Array, weights: Array) -> None:
        self.mean.put(0, columns, values, weights)
        self.low.put(0, columns, values)
        self.high.put(0, columns, values)

    def total(self) -> float:
        return float(self.mean.sums.cells.sum())

    def overall(self) -> Optional[float]:
        weight = self.mean.weights.cells.sum()
        return float(self.mean.sums.cells.sum() / weight) if weight else None

    def data(self) -> Any:
        found = {"mean": self.mean.values(), "low": self.low.cells, "high": self.high.cells}
        return {name: listed(cells[0]) for name, cells in found.items()}


def divided(sums: Array, weights: Array) -> Array:
    """Return means: not a number where there is no weight."""
    return np.divide(sums, weights, out=np.full(np.shape(sums), np.nan), where=weights != 0)


def listed(cells: Array) -> Any:
    """Return cells as lists, with None in place of what is not a number."""
    found: Array = np.where(np.isnan(cells), None, cells)
    return found.tolist()
