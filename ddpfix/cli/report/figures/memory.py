"""Memory over time, with the batch that made each peak."""

from __future__ import annotations

from statistics import median
from typing import Any, Callable, Dict, List, Optional, Sequence

from ddpfix.cli.report import words
from ddpfix.cli.report.figures.figure import Data, Figure, Key, Table, centres, layout, rank_rows, tidy, whole_ticks
from ddpfix.cli.report.figures.scales import Scales

# A line a rank up to so many; of more, the most, the median and the least.
LINES = 4
_COLOURS = ("var(--forward)", "var(--optimizer)", "var(--data)", "var(--backward)")


def make(data: Data, most: Scales) -> List[Figure]:
    memory = data["memory"]
    if not memory["records"] or len(data["columns"]) < 2:
        return []
    x = centres(data["columns"])
    lines = _each(data, x) if len(memory["peak"]) <= LINES else _band(memory["peak"], x)
    what = "peak GPU memory" if memory["of"] == "gpu" else "resident memory"
    drawn = layout(
        "step",
        f"{what}, GiB",
        260,
        xaxis=whole_ticks(data["columns"]),
        yaxis={"range": [0, most.gib]},
        hovermode="x",
    )
    spec = tidy({"data": [*lines, _records(memory["records"])], "layout": drawn, "meta": {"kind": "plain"}})
    about = "The highest so far. A diamond marks a step that set a new peak; hover over it for the largest batch."
    if memory["of"] == "process":
        about += " No GPU: resident memory of each process."
    legend = [*(Key(line["line"]["color"], line["name"]) for line in lines), Key("var(--ink)", "new peak", "diamond")]
    return [Figure("memory", "memory", "Memory over time", about, spec, _table(memory), legend)]


def _gib(values: Sequence[Optional[float]]) -> List[Optional[float]]:
    return [None if value is None else value / words.GIB for value in values]


def _line(name: str, x: Sequence[float], y: Sequence[Optional[float]], colour: str) -> Data:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 2, "shape": "hv"},
        "hovertemplate": f"{name}, step %{{x:.0f}}: %{{y:.2f}} GiB<extra></extra>",
    }


def _each(data: Data, x: Sequence[float]) -> List[Data]:
    rows = zip(rank_rows(data["rank_rows"]), data["memory"]["peak"])
    return [_line(name, x, _gib(row), _COLOURS[place]) for place, (name, row) in enumerate(rows)]


def _band(rows: Sequence[Sequence[Optional[float]]], x: Sequence[float]) -> List[Data]:
    def over(how: Callable[[List[float]], float]) -> List[Optional[float]]:
        columns = [[value for value in column if value is not None] for column in zip(*rows)]
        return _gib([how(column) if column else None for column in columns])

    return [
        _line("highest rank", x, over(max), "var(--data)"),
        _line("median", x, over(median), "var(--forward)"),
        _line("lowest rank", x, over(min), "var(--optimizer)"),
    ]


def _told(record: Dict[str, Any]) -> str:
    batch = f", batch {words.shape(record['shape'])}" if record["shape"] else ""
    padding = f", {words.percent(record['padding'])} padding" if record["padding"] is not None else ""
    return f"step {record['step']:,}, rank {record['rank']}: {words.size(record['bytes'])}{batch}{padding}"


def _records(records: Sequence[Dict[str, Any]]) -> Data:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "new peak",
        "x": [record["step"] for record in records],
        "y": [record["bytes"] / words.GIB for record in records],
        "customdata": [_told(record) for record in records],
        "marker": {"color": "var(--ink)", "size": 9, "symbol": "diamond"},
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _table(memory: Data) -> Table:
    rows = [
        [
            f"{record['step']:,}",
            str(record["rank"]),
            words.size(record["bytes"]),
            f"+{words.size(record['rise'])}",
            words.shape(record["shape"]),
            words.percent(record["padding"]),
        ]
        for record in memory["records"]
    ]
    return Table(["step", "rank", "memory", "rise", "largest batch", "padding"], rows)
