"""Numbers and lists as a sentence says them."""

from __future__ import annotations

import itertools
from typing import List, Optional, Sequence

GIB = 2**30
UNKNOWN = "unknown"


def mean(values: Sequence[Optional[float]]) -> Optional[float]:
    """Return the mean of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:,.0f}"


def count(value: float, name: str, names: str = "") -> str:
    """``1 step``, ``12,000 steps``."""
    return f"{value:,.0f} {name if value == 1 else names or name + 's'}"


def seconds(value: Optional[float]) -> str:
    if value is None:
        return UNKNOWN
    if value >= 1:
        return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} s"
    return f"{value * 1000:.0f} ms" if value >= 0.1 or value == 0 else f"{value * 1000:.1f} ms"


def percent(share: Optional[float]) -> str:
    if share is None:
        return UNKNOWN
    return f"{share * 100:.1f} %" if 0 < share < 0.01 or 0.99 < share < 1 else f"{share * 100:.0f} %"


def size(value: Optional[float]) -> str:
    """Bytes, in the binary unit that fits."""
    if value is None:
        return UNKNOWN
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.0f} bytes"


def shape(value: Optional[Sequence[int]]) -> str:
    return " \u00d7 ".join(map(str, value)) if value else UNKNOWN


def common(names: Sequence[str]) -> List[str]:
    """Return the parts that all dotted names begin with."""
    parts = list(zip(*(name.split(".") for name in names)))
    return [each[0] for each in itertools.takewhile(lambda each: len(set(each)) == 1, parts)]


def listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
