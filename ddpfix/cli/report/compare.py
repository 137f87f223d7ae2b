"""Two runs beside each other: the numbers that are compared, each with its ratio."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from ddpfix.cli.report import words

Data = Dict[str, Any]


class Compared(NamedTuple):
    """One number of both runs. ``ratio`` is the second divided by the first; None where that has no meaning."""

    name: str
    one: Optional[float]
    two: Optional[float]
    ratio: Optional[float]
    shown: List[str]


def compare(one: Data, two: Data) -> List[Compared]:
    """Return the numbers that tell two runs apart, those of the first run first."""
    found = []
    for name, first in _numbers(one).items():
        second = _numbers(two)[name]
        ratio = second / first if first and second is not None else None
        show = words.seconds if name in _SECONDS else words.size if name == _PEAK else _plain
        shown = [show(first), show(second), "-" if ratio is None else f"{ratio:.2f}"]
        found.append(Compared(name, first, second, ratio, shown))
    return found


def rate(data: Data) -> Optional[float]:
    """Return the steps a second, without the first step of each process."""
    total = data["time"]["mean"]["total"]
    return 1 / total if total else None


_PEAK = "peak memory of a rank"
# The names of times, and their parts of a step.
_SECONDS = {
    "time per step": "total",
    "  data loading": "data",
    "  forward": "forward",
    "  backward, wait excluded": "backward",
    "  waiting for other ranks": "wait",
    "  optimizer": "optimizer",
    "  other": "other",
}


def _numbers(data: Data) -> Dict[str, Optional[float]]:
    records, layers = data["memory"]["records"], data["layers"] or {}
    return {
        "steps": float(data["steps"]),
        "steps per second": rate(data),
        **{name: data["time"]["mean"][part] for name, part in _SECONDS.items()},
        _PEAK: records[-1]["bytes"] if records else None,
        "steps where ranks skipped different layers": layers.get("steps_with_disagreement"),
        "layers skipped per step": layers.get("mean_skipped"),
        "unused parameters per step": data["unused"]["mean"],
    }


def _plain(value: Optional[float]) -> str:
    return words.UNKNOWN if value is None else f"{value:,.4g}" if value % 1 else f"{value:,.0f}"
