"""Parameters without a gradient over time, the loss, and the gradient norm."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ddpfix.cli.report import words
from ddpfix.cli.report.figures.figure import Data, Figure, Key, Table, centres, heatmap, layout, tidy, whole_ticks
from ddpfix.cli.report.figures.scales import Scales

# Groups of parameters in the figure.
SHOWN = 30
# Epochs whose beginnings are drawn.
_EPOCHS = 50
_SCALE = [[0, "var(--ran)"], [0.001, "var(--ran)"], [0.002, "var(--some)"], [1, "var(--skipped)"]]


def make(data: Data, most: Scales) -> List[Figure]:
    curves = (("loss", "Loss", most.loss), ("norm", "Gradient norm", most.norm))
    return [*_unused(data), *(figure for curve in curves for figure in _curve(data, *curve))]


def _unused(data: Data) -> List[Figure]:
    groups = data["unused"]["groups"]
    if not groups or len(data["columns"]) < 2:
        return []
    shown = groups[:SHOWN]
    labels = [each["name"].replace(" parameters)", ")") for each in shown]
    meta: Dict[str, Any] = {"kind": "unused"}
    spec = heatmap([each["shares"] for each in shown], data["columns"], data["steps"], labels, _SCALE, (0, 1), meta)
    about = "One row per parameter, or per group with the same history. Colour: on how many ranks it had no gradient."
    if data["unused"]["groups_count"] > SHOWN:
        about += f" Shown: the {SHOWN} most affected of {data['unused']['groups_count']:,} rows."
    rows = [
        [each["name"], str(each["count"]), words.percent(each["share"]), words.listed(each["names"], 4)]
        for each in groups
    ]
    table = Table(["parameters", "number", "without gradient", "names"], rows)
    legend = (
        Key("var(--ran)", "gradient on all ranks"),
        Key("var(--some)", "none on a few ranks or steps"),
        Key("var(--skipped)", "none on all ranks"),
    )
    return [Figure("unused", "unused", "Unused parameters over time", about, spec, table, legend)]


def _curve(data: Data, name: str, title: str, ends: Tuple[float, float]) -> List[Figure]:
    """Return one number of each step: the mean of the ranks, between the smallest and the largest."""
    series = data["series"][name]
    if sum(value is not None for value in series["mean"]) < 2:
        return []
    x = centres(data["columns"])
    band = data["ranks"] > 1 or data["steps"] > len(data["columns"])
    traces = [_edge(x, series["high"], None), _edge(x, series["low"], "tonexty")] if band else []
    mean: Dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": "mean of the ranks",
        "x": x,
        "y": series["mean"],
        "line": {"color": "var(--forward)", "width": 2},
        "customdata": [
            f"{words.UNKNOWN}" if low is None else f"{low:.4g} to {high:.4g}"
            for low, high in zip(series["low"], series["high"])
        ],
        "hovertemplate": "step %{x:.0f}: %{y:.4f}, %{customdata}<extra></extra>",
    }
    drawn = layout(
        "step", title.lower(), 260, xaxis=whole_ticks(data["columns"]), yaxis={"range": list(ends)}, hovermode="x"
    )
    drawn["shapes"] = [_epoch(each["step"]) for each in data["epochs"][1:]] if len(data["epochs"]) <= _EPOCHS else []
    spec = tidy({"data": [*traces, mean], "layout": drawn, "meta": {"kind": "plain"}})
    about = f"{title}: mean of the ranks (line), smallest to largest (band)"
    about += ", start of an epoch (dots)." if drawn["shapes"] else "."
    picked = range(0, len(x), -(-len(x) // 50))
    rows = [[str(data["columns"][p][0]), *(_shown(series[n][p]) for n in ("mean", "low", "high"))] for p in picked]
    return [Figure(name, "loss", title, about, spec, Table(["step", "mean", "smallest", "largest"], rows))]


def _epoch(step: int) -> Data:
    line = {"color": "var(--soft)", "width": 1, "dash": "dot"}
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": step - 0.5, "x1": step - 0.5, "line": line}


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"


def _edge(x: Sequence[float], y: Sequence[Any], fill: Any) -> Data:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "line": {"width": 0},
        "fill": fill or "none",
        "fillcolor": "var(--band)",
        "hoverinfo": "skip",
        "showlegend": False,
    }
