"""The ends of axes and colours that the same figure of several runs has in common."""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ddpfix.cli.report import words

# A value of so many times the median of its row is an outlier; colours go at least this far from the median.
_OUTLYING, _SPREAD = 4.0, 0.3
# Of each row, the largest value but for one in twenty has a colour of its own.
_KEPT = 0.95


class Scales(NamedTuple):
    """Ends of the figures.

    Attributes:
        seconds: the longest step of a rank, as a mean.
        own: the ends of the colours of a rank's own work.
        gib: the most memory of a rank.
        loss: the smallest and the largest loss; norm: the same of gradient norms.
    """

    seconds: float
    own: Tuple[float, float]
    gib: float
    loss: Tuple[float, float]
    norm: Tuple[float, float]


def of(runs: Sequence[Dict[str, Any]]) -> Scales:
    """Return the ends that hold all runs."""
    totals = [each["total"] for data in runs for each in data["time"]["per_rank"]]
    peaks = [record["bytes"] for data in runs for record in data["memory"]["records"]]
    return Scales(
        max(_known(totals), default=0.0) * 1.03 or 1.0,
        robust([row for data in runs for row in data["time"]["own"]]),
        max(_known(peaks), default=0.0) / words.GIB * 1.08 or 1.0,
        _ends(runs, "loss"),
        _ends(runs, "norm"),
    )


def _ends(runs: Sequence[Dict[str, Any]], name: str) -> Tuple[float, float]:
    low = min(_known(value for data in runs for value in data["series"][name]["low"]), default=0.0)
    high = max(_known(value for data in runs for value in data["series"][name]["high"]), default=1.0)
    margin = 0.04 * (high - low) or 0.5
    return low - margin, high + margin


def _known(values: Iterable[Optional[float]]) -> List[float]:
    return [value for value in values if value is not None]


def robust(rows: Sequence[Sequence[Optional[float]]]) -> Tuple[float, float]:
    """Return the ends of a colour scale around the median that outliers do not flatten, each row by its own median."""
    found = [row for row in map(_known, rows) if row]
    middle = median(value for row in found for value in row) if found else 0.0
    if middle <= 0:
        return 0.0, max((value for row in found for value in row), default=0.0) or 1.0
    top = max(middle * (1 + _SPREAD), *map(_usual_end, found))
    return max(0.0, 2 * middle - top), top


def _usual_end(row: Sequence[float]) -> float:
    """Return the largest value of a row but for outliers."""
    limit = _OUTLYING * median(row)
    usual = sorted(value for value in row if value <= limit) or [max(row)]
    return usual[int(_KEPT * (len(usual) - 1))]
