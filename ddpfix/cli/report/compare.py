"""Two runs beside each other: the numbers that are compared, each with its ratio."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional

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
    return [_compared(name, of(one), of(two), show) for name, of, show in _NUMBERS]


def _compared(
    name: str, one: Optional[float], two: Optional[float], show: Callable[[Optional[float]], str]
) -> Compared:
    ratio = two / one if one and two is not None else None
    return Compared(name, one, two, ratio, [show(one), show(two), "-" if ratio is None else f"{ratio:.2f}"])


def _seconds(part: str) -> Callable[[Data], Optional[float]]:
    def of(data: Data) -> Optional[float]:
        value: Optional[float] = data["time"]["mean"][part]
        return value

    return of


def rate(data: Data) -> Optional[float]:
    """Return the steps a second, without the first step of each process."""
    total = data["time"]["mean"]["total"]
    return 1 / total if total else None


def _samples(data: Data) -> Optional[float]:
    steps, samples = rate(data), data["samples_a_step"]
    return steps * samples if steps and samples else None


def _peak(data: Data) -> Optional[float]:
    records = data["memory"]["records"]
    return records[-1]["bytes"] if records else None


def _parted(data: Data) -> Optional[float]:
    return None if data["layers"] is None else float(data["layers"]["steps_with_disagreement"])


def _skipped(data: Data) -> Optional[float]:
    return None if data["layers"] is None else data["layers"]["mean_skipped"]


def _unused(data: Data) -> Optional[float]:
    return words.mean(data["series"]["unused"]["mean"])


def _a_step(name: str) -> Callable[[Data], Optional[float]]:
    def of(data: Data) -> Optional[float]:
        known = sum(value is not None for value in data["series"][name]["mean"])
        rows = sum(each["steps"] for each in data["time"]["per_rank"])
        return data["gradients"][name] / rows if known and rows else None

    return of


def _last_loss(data: Data) -> Optional[float]:
    """Return the mean over the last tenth of the steps, of all ranks."""
    known = [value for value in data["series"]["loss"]["mean"] if value is not None]
    return words.mean(known[-max(1, len(known) // 10) :])


def _plain(value: Optional[float]) -> str:
    return words.UNKNOWN if value is None else f"{value:,.4g}" if value % 1 else f"{value:,.0f}"


_NUMBERS = (
    ("steps", lambda data: float(data["steps"]), _plain),
    ("steps per second", rate, _plain),
    ("samples per second", _samples, _plain),
    ("time per step", _seconds("total"), words.seconds),
    ("  data loading", _seconds("data"), words.seconds),
    ("  forward", _seconds("forward"), words.seconds),
    ("  backward, wait excluded", _seconds("backward"), words.seconds),
    ("  waiting for other ranks", _seconds("wait"), words.seconds),
    ("  optimizer", _seconds("optimizer"), words.seconds),
    ("  other", _seconds("other"), words.seconds),
    ("peak memory of a rank", _peak, words.size),
    ("steps where ranks skipped different layers", _parted, _plain),
    ("layers skipped per step", _skipped, _plain),
    ("unused parameters per step", _unused, _plain),
    ("gradients sent per rank and step", _a_step("sent"), words.size),
    ("loss, last tenth of the steps", _last_loss, _plain),
)
