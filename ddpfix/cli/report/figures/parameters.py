"""Parameters without a gradient over time, and the loss."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ddpfix.cli.report import words
from ddpfix.cli.report.figures.figure import Data, Figure, Table, centres, heatmap, layout, tidy, whole_ticks
from ddpfix.cli.report.figures.scales import Scales

# Groups of parameters in the figure.
SHOWN = 30
_SCALE = [[0, "var(--ran)"], [0.001, "var(--ran)"], [0.002, "var(--some)"], [1, "var(--skipped)"]]


def make(data: Data, most: Scales) -> List[Figure]:
    return [*_unused(data), *_loss(data, most.loss)]


def _unused(data: Data) -> List[Figure]:
    groups = data["unused"]["groups"]
    if not groups or len(data["columns"]) < 2:
        return []
    shown = groups[:SHOWN]
    labels = [each["name"].replace(" parameters)", ")") for each in shown]
    meta: Dict[str, Any] = {"kind": "unused"}
    spec = heatmap([each["shares"] for each in shown], data["columns"], data["steps"], labels, _SCALE, (0, 1), meta)
    about = (
        "A row is a parameter, or several with the same history; the colour says on how many ranks it had no gradient."
    )
    if data["unused"]["groups_count"] > SHOWN:
        about += f" The {SHOWN} that had none most often, of {data['unused']['groups_count']:,}."
    rows = [
        [each["name"], str(each["count"]), words.percent(each["share"]), words.listed(each["names"], 4)]
        for each in groups
    ]
    table = Table(["parameters", "number", "without a gradient in", "names"], rows)
    legend = (
        ("var(--ran)", "a gradient on all ranks"),
        ("var(--some)", "none on a few ranks or steps"),
        ("var(--skipped)", "none on all ranks"),
    )
    return [Figure("unused", "unused", "Unused parameters over time", about, spec, table, legend)]


def _loss(data: Data, ends: Tuple[float, float]) -> List[Figure]:
    loss = data["series"]["loss"]
    if sum(value is not None for value in loss["mean"]) < 2:
        return []
    x = centres(data["columns"])
    band = data["ranks"] > 1 or data["steps"] > len(data["columns"])
    traces = [_edge(x, loss["high"], None), _edge(x, loss["low"], "tonexty")] if band else []
    mean: Dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": "mean of the ranks",
        "x": x,
        "y": loss["mean"],
        "line": {"color": "var(--forward)", "width": 2},
        "customdata": [
            f"{words.UNKNOWN}" if low is None else f"{low:.4g} to {high:.4g}"
            for low, high in zip(loss["low"], loss["high"])
        ],
        "hovertemplate": "step %{x:.0f}: %{y:.4f}, %{customdata}<extra></extra>",
    }
    spec = tidy(
        {
            "data": [*traces, mean],
            "layout": layout(
                "step", "loss", 260, xaxis=whole_ticks(data["columns"]), yaxis={"range": list(ends)}, hovermode="x"
            ),
            "meta": {"kind": "plain"},
            "compact": 170,
        }
    )
    about = "The line is the mean of the ranks; the band, the smallest and the largest."
    picked = range(0, len(x), -(-len(x) // 50))
    rows = [[str(data["columns"][p][0]), *(_shown(loss[n][p]) for n in ("mean", "low", "high"))] for p in picked]
    return [Figure("loss", "loss", "Loss", about, spec, Table(["step", "mean", "smallest", "largest"], rows))]


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
