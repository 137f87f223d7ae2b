"""The figures of a run: layers, time, memory and unused parameters, as plain data for plotly."""

from __future__ import annotations

import html
from statistics import median
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpfix.cli.report import words
from ddpfix.cli.report.summary import OUTLYING

Data = Dict[str, Any]
# Bars of time, groups of parameters, and lines of memory in a figure.
_BARS, _GROUPS, _LINES = 48, 30, 4
_INK, _GRID = "#1b2129", "#d4d9e0"
# Of layers and compute time. Red is for ranks that hold up or disagree with the others, and for nothing else.
_RAN, _SKIPPED, _DIFFERS, _ALONE = "#e6eaef", "#2f7cc0", "#f6b26b", "#c93c12"
_LAYERS = [[0, _RAN], [1 / 3, _SKIPPED], [0.5, _SKIPPED], [0.5, _DIFFERS], [2 / 3, _DIFFERS], [1, _ALONE]]
_SECONDS = [[0, _RAN], [0.5, _SKIPPED], [1, _ALONE]]
_UNUSED = [[0, _RAN], [0.001, _RAN], [0.002, "#a9c9e8"], [1, _SKIPPED]]
_PARTS = {
    "data": "#d98e04",
    "forward": "#2f7cc0",
    "backward": "#7cb9ea",
    "wait": "#8a63b8",
    "optimizer": "#14866a",
    "other": "#98a1ac",
}
# Colours go at least this far from the median.
_SPREAD = 0.3


class Figure(NamedTuple):
    """One figure; ``name`` is that of the same figure of another run, ``spec`` has ``data`` and ``layout``."""

    name: str
    title: str
    about: str
    spec: Data


def make(runs: Sequence[Data]) -> List[List[Figure]]:
    """Return all figures for which a run has data, for each run; axes and colours of all runs have the same ends."""
    totals = [each["total"] for data in runs for each in data["time"]["per_rank"] if each["total"] is not None]
    peaks = [record["bytes"] for data in runs for record in data["memory"]["records"]]
    own = [value for data in runs for row in data["time"]["own"] for value in row if value is not None]
    # A few outliers do not flatten the colours around the median.
    middle = median(own) if own else 0.0
    top = max([middle * (1 + _SPREAD), *(value for value in own if value <= OUTLYING * middle)], default=1.0) or 1.0
    drawn = [
        (
            _layers(data),
            _bars(data, max(totals, default=1.0) * 1.03 or 1.0),
            _own(data, (max(0.0, 2 * middle - top), top)),
            _memory(data, max(peaks, default=words.GIB) / words.GIB * 1.08 or 1.0),
            _unused(data),
        )
        for data in runs
    ]
    return [[figure for figure in each if figure is not None] for each in drawn]


def _layers(data: Data) -> Optional[Figure]:
    """Return one picture: a row a layer and rank, or several ranks; rows of one layer lie beside each other."""
    layers = data["layers"]
    if layers is None or not layers["mean_skipped"]:
        return None
    ranks = _ranks(layers["rank_rows"])
    shares = [row for skipped in layers["skipped"] for row in skipped]
    disagreed = [row for row in layers["disagreed"] for _ in ranks]
    # 0 to 1: how often it was skipped; 2 to 3: the same, where ranks differ.
    z = [
        [None if share is None else share + (2 if parted else 0) for share, parted in zip(row, where)]
        for row, where in zip(shares, disagreed)
    ]
    # encoder.layers.3 among others of its kind is layer 3.
    parts = [name.split(".") for name in layers["names"]]
    common = min(len(words.common(layers["names"])), *(len(each) - 1 for each in parts))
    short = [".".join(each[common:]) for each in parts]
    names = [f"layer {name}" if name.isdecimal() else name for name in short]
    labels = [f"{name}, {rank}" if len(ranks) > 1 else name for name in names for rank in ranks]
    spec = _heatmap(z, data["columns"], labels, _LAYERS, (0, 3), "skipped in %{customdata:.0%}", shares)
    about = (
        "A row per layer and rank, a column per step. Blue: skipped. Orange and red: skipped on some ranks only; red on"
        " this one. Shades are of cells that hold several ranks or steps."
    )
    return Figure("layers", "Skipped layers by rank and step", about, spec)


def _bars(data: Data, end: float) -> Optional[Figure]:
    time, found = data["time"], data["time"]["straggler"]
    if time["mean"]["total"] is None:
        return None
    shown = sorted(time["per_rank"], key=lambda each: -(each["own"] or each["total"] or 0.0))[:_BARS]
    shown.sort(key=lambda each: int(each["rank"]))
    straggler = found["rank"] if found and found["clear"] else None
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": {"wait": "waiting for other ranks"}.get(part, part),
            "y": [f"rank {each['rank']}{' (straggler)' if each['rank'] == straggler else ''}" for each in shown],
            "x": [each[part] or 0.0 for each in shown],
            "marker": {"color": _PARTS[part]},
            "hovertemplate": "%{y}: %{x:.4f} s",
        }
        for part in time["parts"]
        if any(each[part] for each in shown)
    ]
    more: Data = {"barmode": "stack", "showlegend": True, "legend": {"orientation": "h"}}
    drawn = _layout("seconds a step", "", max(170, min(660, 110 + 26 * len(shown))), **more)
    drawn["xaxis"]["range"] = [0, end]
    drawn["yaxis"].update(autorange="reversed", type="category", showgrid=False)
    about = "Median seconds per step of each rank, first step excluded. Backward excludes the wait."
    if len(time["per_rank"]) > _BARS:
        about += f" Shown: the {_BARS} ranks with the longest compute time."
    return Figure("time", "Time per step of each rank", about, {"data": traces, "layout": drawn})


def _own(data: Data, ends: Tuple[float, float]) -> Optional[Figure]:
    own = data["time"]["own"]
    if not any(sum(value is not None for value in row) > 1 for row in own):
        return None
    labels = _ranks(data["rank_rows"])
    spec = _heatmap(own, data["columns"], labels, _SECONDS, ends, "%{z:.4f} s of its own")
    about = "Compute time per step, waits excluded. Red steps hold up the other ranks."
    if len(labels) < data["ranks"]:
        about += " A row shows the slowest of its ranks."
    return Figure("own", "Compute time of each rank, by step", about, spec)


def _memory(data: Data, end: float) -> Optional[Figure]:
    memory = data["memory"]
    if not memory["records"] or len(data["columns"]) < 2:
        return None
    rows = [[None if value is None else value / words.GIB for value in row] for row in memory["peak"]]
    if len(rows) <= _LINES:
        lines = list(zip(_ranks(data["rank_rows"]), rows))
    else:
        columns = [[value for value in column if value is not None] for column in zip(*rows)]
        kinds = (("highest rank", max), ("median", median), ("lowest rank", min))
        lines = [(name, [how(each) if each else None for each in columns]) for name, how in kinds]
    x, colours = _centres(data["columns"]), list(_PARTS.values())
    traces: List[Data] = [
        {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": {"color": colour, "shape": "hv"}}
        for (name, y), colour in zip(lines, colours)
    ]
    records = memory["records"]
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "new peak",
            "x": [record["step"] for record in records],
            "y": [record["bytes"] / words.GIB for record in records],
            "text": [
                f"step {record['step']:,}, rank {record['rank']}: {words.size(record['bytes'])}"
                + (f", batch {words.shape(record['shape'])}" if record["shape"] else "")
                for record in records
            ],
            "marker": {"color": _INK, "size": 9, "symbol": "diamond"},
            "hovertemplate": "%{text}<extra></extra>",
        }
    )
    what = "peak GPU memory" if memory["of"] == "gpu" else "resident memory of a process"
    drawn = _layout("step", f"{what}, GiB", 290, showlegend=True, legend={"orientation": "h", "y": 1.15})
    drawn["yaxis"]["range"] = [0, end]
    about = "The highest so far. A diamond marks a step that set a new peak; hover over it for the largest batch."
    return Figure("memory", "Memory over time", about, {"data": traces, "layout": drawn})


def _unused(data: Data) -> Optional[Figure]:
    groups = data["unused"]["groups"]
    if not groups or len(data["columns"]) < 2:
        return None
    shown = groups[:_GROUPS]
    labels = [each["name"].replace(" parameters)", ")") for each in shown]
    spec = _heatmap(
        [each["shares"] for each in shown], data["columns"], labels, _UNUSED, (0, 1), "no gradient in %{z:.0%}"
    )
    about = "A row per parameter, or per group with the same history. Blue: no gradient, the darker on the more ranks."
    if data["unused"]["groups_count"] > _GROUPS:
        about += f" Shown: the {_GROUPS} most affected of {data['unused']['groups_count']:,} rows."
    return Figure("unused", "Unused parameters over time", about, spec)


def _heatmap(
    z: Sequence[Sequence[Optional[float]]],
    columns: Sequence[Sequence[int]],
    labels: Sequence[str],
    scale: Sequence[Sequence[Any]],
    ends: Tuple[float, float],
    says: str,
    customdata: Any = None,
) -> Data:
    """Return a heatmap of rows by steps; ``says`` is what a cell tells, beside its row and step."""
    every = -(-len(labels) // 24)
    ticks = list(range(0, len(labels), every))
    small = int(len(columns) <= 80 and len(labels) <= 60)
    trace = {
        "type": "heatmap",
        # A picture shows no more digits.
        "z": [[None if value is None else round(value, 6) for value in row] for row in z],
        "x": _centres(columns),
        "customdata": customdata,
        "colorscale": [list(stop) for stop in scale],
        "zmin": ends[0],
        "zmax": ends[1],
        "showscale": False,
        "xgap": small,
        "ygap": small,
        "hovertemplate": f"step %{{x}}, %{{y}}: {says}<extra></extra>",
    }
    drawn = _layout("step", "", max(120, min(560, 70 + 16 * len(labels))))
    drawn["xaxis"]["showgrid"] = False
    shown = [_label(labels[place]) for place in ticks]
    drawn["yaxis"].update(tickvals=ticks, ticktext=shown, autorange="reversed", showgrid=False)
    return {"data": [trace], "layout": drawn}


def _layout(x: str, y: str, height: int, **more: Any) -> Data:
    axis = {"automargin": True, "gridcolor": _GRID, "zeroline": False}
    return {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": _INK, "size": 12},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
        "showlegend": False,
        **more,
    }


def _label(text: str, longest: int = 24) -> str:
    """Return a text for a figure: plotly reads tags and entities, which are escaped; long ones lose their beginning."""
    shown = text if len(text) <= longest else "\u2026" + text[1 - longest :]
    return html.escape(shown, quote=False)


def _ranks(rows: Sequence[Sequence[int]]) -> List[str]:
    return [f"rank {first}" if first == last else f"ranks {first}-{last}" for first, last in rows]


def _centres(columns: Sequence[Sequence[int]]) -> List[float]:
    return [(first + last) / 2 for first, last in columns]
