"""What a figure consists of, and the parts that several figures share.

Figures are plain data for plotly.js. A colour is the name of one of the page's (``var(--skipped)``), so that figures
follow the page from light to dark. Hover texts of heatmaps are put together in the page, from ``meta``.
"""

from __future__ import annotations

import html
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpfix.cli.report import words

Data = Dict[str, Any]
Matrix = List[List[Optional[float]]]
# Rows of a table that the page shows; --json has all.
TABLE_ROWS = 100


class Table(NamedTuple):
    """The numbers behind a figure; cells are text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


class Key(NamedTuple):
    """A line of a legend; ``mark`` is what it looks like in the figure: ``square`` or ``diamond``."""

    colour: str
    meaning: str
    mark: str = "square"


class Figure(NamedTuple):
    """One figure.

    Attributes:
        name: the same for the same figure of two runs.
        spec: ``data`` and ``layout`` for plotly.js, and ``meta`` for the page.
        is_scale: whether colours between those of the legend stand for what lies between.
    """

    name: str
    subject: str
    title: str
    about: str
    spec: Dict[str, Any]
    table: Table
    legend: Sequence[Key] = ()
    is_scale: bool = False


def label(text: str, longest: int = 24) -> str:
    """Return a text for a figure: plotly reads tags and entities, which are escaped; long ones lose their beginning."""
    shown = text if len(text) <= longest else "\u2026" + text[1 - longest :]
    return html.escape(shown, quote=False)


def layer_names(names: Sequence[str]) -> List[str]:
    """Without what all begin with: ``encoder.layers.3`` among others of its kind is ``layer 3``."""
    split = [name.split(".") for name in names]
    common = 0
    while all(len(parts) > common + 1 and parts[common] == split[0][common] for parts in split):
        common += 1
    short = [".".join(parts[common:]) for parts in split]
    return [f"layer {name}" if re.fullmatch(r"\d+", name) else name for name in short]


def tidy(value: Any) -> Any:
    """Numbers of a figure with five digits, which is more than a picture shows."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, (list, tuple)):
        return [tidy(each) for each in value]
    if isinstance(value, dict):
        return {name: tidy(each) for name, each in value.items()}
    return value


def steps_of(columns: Sequence[Sequence[int]], last: int) -> List[str]:
    """``step 7``, or ``steps 33-64`` where several share a column."""
    return [words.span(first, min(end, last), "step") for first, end in columns]


def centres(columns: Sequence[Sequence[int]]) -> List[float]:
    return [(first + last) / 2 for first, last in columns]


def rank_rows(rows: Sequence[Sequence[int]]) -> List[str]:
    return [words.span(first, last, "rank") for first, last in rows]


def layout(x: str, y: str, height: int, **more: Any) -> Dict[str, Any]:
    """Return the common layout of figures: axis titles, height, margins that fit a phone."""
    axis = {"automargin": True, "gridcolor": "var(--grid)", "zeroline": False, "linecolor": "var(--grid)"}
    found: Dict[str, Any] = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--ink)", "family": "system-ui, sans-serif", "size": 12},
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--ink)", "font": {"color": "var(--ink)"}},
        "xaxis": {**axis, "title": {"text": x, "standoff": 6}},
        "yaxis": {**axis, "title": {"text": y, "standoff": 6}},
        # The page has its own legends, which need no width of the plot's.
        "showlegend": False,
    }
    for name, value in more.items():
        found[name] = {**found[name], **value} if isinstance(found.get(name), dict) else value
    return found


def heatmap(
    z: Matrix,
    columns: Sequence[Sequence[int]],
    last: int,
    labels: Sequence[str],
    scale: Sequence[Sequence[Any]],
    limits: Tuple[float, float],
    meta: Data,
) -> Data:
    """Return a heatmap of rows by steps; ``meta`` says how the page writes a cell's hover text."""
    small = len(columns) <= 80 and len(labels) <= 60
    trace = {
        "type": "heatmap",
        "z": z,
        "x": centres(columns),
        "y": list(range(len(labels))),
        "colorscale": [list(stop) for stop in scale],
        "zmin": limits[0],
        "zmax": limits[1],
        "showscale": False,
        "xgap": 1 if small else 0,
        "ygap": 1 if small else 0,
        "hovertemplate": "%{text}<extra></extra>",
    }
    every = -(-len(labels) // 24)
    ticks = list(range(0, len(labels), every))
    axis = {
        "tickvals": ticks,
        "ticktext": [label(labels[place]) for place in ticks],
        "autorange": "reversed",
        "showgrid": False,
    }
    height = max(120, min(560, 70 + (9 if len(labels) > 30 else 16) * len(labels)))
    drawn = layout("step", "", height, xaxis={"showgrid": False, **whole_ticks(columns)}, yaxis=axis)
    hover = {**meta, "columns": steps_of(columns, last), "rows": [label(each, 60) for each in labels]}
    found: Data = tidy({"data": [trace], "layout": drawn, "meta": hover})
    return found


def whole_ticks(columns: Sequence[Sequence[int]]) -> Dict[str, Any]:
    """Return what keeps an axis of few steps from halves of them."""
    return {"dtick": 1} if columns and columns[-1][1] <= 10 else {}
