"""Values of a trace as they may be used: a file that was written by anything else must not end what reads it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

# Longer texts are cut: a trace has what a program printed, and a page is read.
LONGEST = 2000
# What is larger is no time, no size and no loss, and sums of it have no end.
LARGEST = 1e30


def number(value: Any) -> Optional[float]:
    """Return a number of a possible size, or None."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST:
        return value
    return None


def numbers(values: Sequence[Any]) -> Sequence[Optional[float]]:
    kinds = set(map(type, values))
    # The usual column is one of numbers, or has none at all; looking at each value takes ten times as long.
    if kinds == {type(None)} or (kinds <= {int, float} and _all_possible(values)):
        return values
    return [number(value) for value in values]


def _all_possible(values: Sequence[float]) -> bool:
    """Return whether all can be added up; a sum with a value that is no number is none."""
    return not values or (-LARGEST < sum(values) < LARGEST and min(values) > -LARGEST and max(values) < LARGEST)


def whole(value: Any, least: int = 0) -> Optional[int]:
    """Return an integer that is at least ``least`` and that fits into 63 bits, or None."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63:
        return value
    return None


def indices(value: Any) -> Optional[List[int]]:
    """Return a list of indices (non-negative integers of a possible size), or None where there is no list."""
    if not isinstance(value, list):
        return None
    if not value or (set(map(type, value)) == {int} and min(value) >= 0 and max(value) < 2**20):
        return value
    return [each for each in value if isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2**20]


def shape(value: Any) -> Optional[List[int]]:
    """Return the shape of a tensor, or None where there is none."""
    known = isinstance(value, list) and all(whole(each) is not None for each in value)
    return value if known else None


def text(value: Any) -> str:
    """Return a string that can be printed on one page; empty for None."""
    found = "" if value is None else value if isinstance(value, str) else str(value)
    # A lone surrogate, which JSON can hold, cannot be written as UTF-8.
    found = found.encode("utf-8", "replace").decode("utf-8")
    return found if len(found) <= LONGEST else found[: LONGEST - 4] + " ..."


def texts(value: Any) -> List[str]:
    return [text(each) for each in value] if isinstance(value, list) else []


def table(value: Any) -> Dict[str, Any]:
    return {text(key): each for key, each in value.items()} if isinstance(value, dict) else {}


def rows(value: Any) -> List[Dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
