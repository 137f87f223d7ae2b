"""The ends of axes and colours that the same figure of several runs has in common."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ddpfix.cli.report import words


class Scales(NamedTuple):
    """Ends of the figures.

    Attributes:
        seconds: the longest step of a rank, as a mean.
        own: the longest own work of a rank in a column of steps, without the longest hundredth of them.
        gib: the most memory of a rank.
        loss: the smallest and the largest loss.
    """

    seconds: float
    own: float
    gib: float
    loss: Tuple[float, float]


def of(runs: Sequence[Dict[str, Any]]) -> Scales:
    """Return the ends that hold all runs."""
    totals = [each["total"] for data in runs for each in data["time"]["per_rank"]]
    own = max((_without_longest(data["time"]["own"]) for data in runs), default=0.0)
    peaks = [record["bytes"] for data in runs for record in data["memory"]["records"]]
    low = [value for data in runs for value in data["series"]["loss"]["low"]]
    high = [value for data in runs for value in data["series"]["loss"]["high"]]
    ends = (min(_known(low), default=0.0), max(_known(high), default=1.0))
    return Scales(
        max(_known(totals), default=0.0) * 1.03 or 1.0,
        own or 1.0,
        max(_known(peaks), default=0.0) / words.GIB * 1.08 or 1.0,
        (ends[0] - 0.04 * (ends[1] - ends[0]), ends[1] + 0.04 * (ends[1] - ends[0])),
    )


def _known(values: Iterable[Optional[float]]) -> List[float]:
    return [value for value in values if value is not None]


def _without_longest(rows: Sequence[Sequence[Optional[float]]]) -> float:
    """Return the top of a scale on which one column that took long does not leave all else in one colour."""
    known = sorted(_known(value for row in rows for value in row))
    return known[min(len(known) - 1, int(len(known) * 0.99))] if known else 0.0
