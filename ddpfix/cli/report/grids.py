"""Tables over steps whose size does not grow with the number of steps.

All ranks of a run are added one after the other, and the number of steps is not known before the last of them, so a
timeline begins with one step a column. Where a step lies beyond its last column, each two columns become one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any, List, Optional, Sequence, Tuple

# A column, and the first and the end of the values that lie in it.
Piece = Tuple[int, int, int]
Values = Sequence[Optional[float]]
# Of a table that keeps the largest or the smallest value: nothing has been put in here.
NOTHING = float("nan")


class Timeline:
    """The columns that several tables share: ``width`` steps each, at most ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self.limit, self.width, self.count = limit, 1, 0
        self._tables: List[Table] = []

    def add(self, table: Table) -> None:
        self._tables.append(table)
        table.grow(self.count)

    def fit(self, last: int) -> None:
        """Make room for a step; steps begin with 1."""
        while (last - 1) // self.width >= self.limit:
            self.width *= 2
            self.count = (self.count + 1) // 2
            for table in self._tables:
                table.halve()
        self.count = max(self.count, (last - 1) // self.width + 1)
        for table in self._tables:
            table.grow(self.count)

    def pieces(self, steps: Sequence[int]) -> List[Piece]:
        """Return the columns of a rank's steps, which are in order, and which of the steps lie in each."""
        width = self.width
        pieces, start = [], 0
        while start < len(steps):
            column = (steps[start] - 1) // width
            end = bisect_right(steps, (column + 1) * width, start)
            pieces.append((column, start, end))
            start = end
        return pieces

    def spans(self) -> List[Tuple[int, int]]:
        """Return the first and last step of each column."""
        return [(column * self.width + 1, (column + 1) * self.width) for column in range(self.count)]


class Table:
    """What a timeline asks of its tables."""

    def grow(self, columns: int) -> None:
        raise NotImplementedError

    def halve(self) -> None:
        raise NotImplementedError


class Grid(Table):
    """Rows by columns of numbers: the sum, or the largest, or the smallest of what was put into a cell."""

    def __init__(self, timeline: Timeline, rows: int = 1, how: str = "sum") -> None:
        self.how, self.empty = how, 0.0 if how == "sum" else NOTHING
        self.rows = [array("d") for _ in range(rows)]
        timeline.add(self)

    def grow(self, columns: int) -> None:
        for row in self.rows:
            row.extend([self.empty] * (columns - len(row)))

    def halve(self) -> None:
        for number, row in enumerate(self.rows):
            pairs = [list(row[place : place + 2]) for place in range(0, len(row), 2)]
            self.rows[number] = array("d", [self._joined(pair) for pair in pairs])

    def _joined(self, values: List[float]) -> float:
        if self.how == "sum":
            return sum(values)
        kept = [value for value in values if value == value]
        return (max if self.how == "max" else min)(kept) if kept else NOTHING

    def put(self, row: int, pieces: Sequence[Piece], values: Values, weights: Optional[Sequence[int]]) -> None:
        """Add a rank's values.

        Args:
            pieces: where each value goes, as :meth:`Timeline.pieces` has it.
            values: one a step of the rank; None is left out.
            weights: how many steps each value stands for; None for one each.
        """
        cells, holes = self.rows[row], None in values
        for column, start, end in pieces:
            part = values[start:end]
            if holes or (weights is not None and self.how == "sum"):
                part = self._picked(part, None if weights is None else weights[start:end])
            if part:
                cells[column] = self._with(cells[column], part)

    def _picked(self, values: Values, weights: Optional[Sequence[int]]) -> List[Optional[float]]:
        if weights is None or self.how != "sum":
            return [value for value in values if value is not None]
        return [value * weight for value, weight in zip(values, weights) if value is not None]

    def _with(self, cell: float, values: Any) -> float:
        if self.how == "sum":
            return cell + float(sum(values))
        best = float(max(values) if self.how == "max" else min(values))
        if cell != cell:
            return best
        return max(cell, best) if self.how == "max" else min(cell, best)


class Mean(Table):
    """Rows by columns: the mean of what was put into a cell, weighted by the steps that each value stands for."""

    def __init__(self, timeline: Timeline, rows: int = 1) -> None:
        self.sums, self.weights = Grid(timeline, rows), Grid(timeline, rows)

    def put(self, row: int, pieces: Sequence[Piece], values: Values, weights: Optional[Sequence[int]]) -> None:
        if any(value is not None for value in values):
            self.sums.put(row, pieces, values, weights)
            self.weights.put(row, pieces, known_as_one(values), weights)

    def values(self, row: int = 0) -> List[Optional[float]]:
        pairs = zip(self.sums.rows[row], self.weights.rows[row])
        return [total / weight if weight else None for total, weight in pairs]

    def row_mean(self, row: int) -> Optional[float]:
        weight = sum(self.weights.rows[row])
        return sum(self.sums.rows[row]) / weight if weight else None


class Series:
    """One value a step: its mean, smallest and largest over the ranks and steps of a column."""

    def __init__(self, timeline: Timeline) -> None:
        self._mean, self._low, self._high = Mean(timeline), Grid(timeline, how="min"), Grid(timeline, how="max")

    def put(self, pieces: Sequence[Piece], values: Values, weights: Optional[Sequence[int]]) -> None:
        for table in (self._mean, self._low, self._high):
            table.put(0, pieces, values, weights)

    def mean(self) -> List[Optional[float]]:
        return self._mean.values()

    def low(self) -> List[Optional[float]]:
        return known(self._low.rows[0])

    def high(self) -> List[Optional[float]]:
        return known(self._high.rows[0])

    def total(self) -> float:
        return sum(self._mean.sums.rows[0])

    def overall(self) -> Optional[float]:
        return self._mean.row_mean(0)


def known_as_one(values: Values) -> Values:
    """1 for each value that is known, which adds up to how many there are."""
    return [None if value is None else 1.0 for value in values] if None in values else [1.0] * len(values)


def known(values: Sequence[float]) -> List[Optional[float]]:
    """With None in place of what is not a number."""
    return [value if value == value else None for value in values]
