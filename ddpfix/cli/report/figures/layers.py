"""Ranks by steps by layers: what was skipped, and where ranks differ."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from ddpfix.cli.report import words
from ddpfix.cli.report.figures.figure import Data, Figure, Key, Matrix, Table, heatmap, layer_names, rank_rows
from ddpfix.cli.report.figures.scales import Scales

# So many rows of layers and ranks fit into one picture; more need two.
TOGETHER = 96
# The states of one rank's layer in one step, in the order of their numbers in the figure.
STATES = (
    Key("var(--ran)", "ran on all ranks"),
    Key("var(--skipped)", "skipped on all ranks"),
    Key("var(--differs)", "ran here, skipped on another rank"),
    Key("var(--alone)", "skipped here, ran on another rank"),
)
_STEPS = [[place / 4, colour] for number, (colour, *_) in enumerate(STATES) for place in (number, number + 1)]
_SHARES = [[0, "var(--ran)"], [0.499, "var(--skipped)"], [0.5, "var(--differs)"], [1, "var(--alone)"]]
_LEGEND = (
    Key("var(--ran)", "never skipped"),
    Key("var(--skipped)", "always skipped, on all ranks"),
    Key("var(--differs)", "ranks differ in some steps"),
    Key("var(--alone)", "ranks differ in all steps"),
)


def make(data: Data, most: Scales) -> List[Figure]:
    layers = data["layers"]
    if layers is None or not layers["columns"] or not layers["mean_skipped"]:
        return []
    names = layer_names(layers["names"])
    exact = all(first == last for first, last in [*layers["columns"], *layers["rank_rows"]])
    if exact and len(names) * len(layers["rank_rows"]) <= TOGETHER:
        return [_together(data, names)]
    return [_overview(data, names), _ranks(data, names)]


def _together(data: Data, names: Sequence[str]) -> Figure:
    """Return all in one picture: a row a layer and rank, so that rows of one layer lie beside each other."""
    layers = data["layers"]
    ranks = rank_rows(layers["rank_rows"])
    z: Matrix = []
    for skipped, disagreed in zip(layers["skipped"], layers["disagreed"]):
        z += [[_state(share, parted) for share, parted in zip(row, disagreed)] for row in skipped]
    labels = [f"{name}, {rank}" if len(ranks) > 1 else name for name in names for rank in ranks]
    meta: Dict[str, Any] = {"kind": "states", "states": [key.meaning for key in STATES]}
    spec = heatmap(z, layers["columns"], data["steps"], labels, _STEPS, (-0.5, 3.5), meta)
    if len(ranks) > 1:
        spec["layout"]["shapes"] = [_line(place * len(ranks) - 0.5) for place in range(1, len(names))]
    about = "One row per layer and rank, one column per step."
    return Figure("layers", "layers", "Skipped layers by rank and step", about, spec, _table(layers, names), STATES)


def _state(share: Optional[float], disagreed: int) -> Optional[float]:
    if share is None:
        return None
    return float((3 if share else 2) if disagreed else bool(share))


def _line(y: float) -> Data:
    line = {"color": "var(--grid)", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _overview(data: Data, names: Sequence[str]) -> Figure:
    """Return all ranks together: a row a layer."""
    layers = data["layers"]
    widths = [min(last, data["steps"]) - first + 1 for first, last in layers["columns"]]
    z = [
        [_value(_mean([row[column] for row in rows]), parted[column], width) for column, width in enumerate(widths)]
        for rows, parted in zip(layers["skipped"], layers["disagreed"])
    ]
    meta = {"kind": "layers", "disagreed": layers["disagreed"], "widths": widths}
    spec = heatmap(z, layers["columns"], data["steps"], names, _SHARES, (0, 2), meta)
    about = "One row per layer. Blue: how often it was skipped; orange to red: how often ranks differed."
    return Figure("layers", "layers", "Skipped layers by step", about, spec, _table(layers, names), _LEGEND)


def _value(share: Optional[float], disagreed: int, width: int) -> Optional[float]:
    """0 to 1: how often it was skipped; 1 to 2: in how many steps ranks differ."""
    if share is None:
        return None
    return 1.0 + max(0.02, min(1.0, disagreed / width)) if disagreed else min(share, 0.99)


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def _ranks(data: Data, names: Sequence[str]) -> Figure:
    """Return one layer at a time: a row a rank, or several ranks."""
    layers = data["layers"]
    worst = max(range(len(names)), key=lambda layer: layers["disagreed_steps"][layer])
    meta = {"kind": "choice", "layers": _percents(layers["skipped"]), "disagreed": layers["disagreed"]}
    first: Matrix = [[0.0] * len(layers["columns"]) for _ in layers["rank_rows"]]
    labels = rank_rows(layers["rank_rows"])
    spec = heatmap(first, layers["columns"], data["steps"], labels, _SHARES, (0, 2), meta)
    rows = [[label, *_shares(layers["skipped"], place)] for place, label in enumerate(labels)]
    about = "One row per rank or group of ranks. Blue: how often it was skipped; orange to red: where ranks differ."
    return Figure(
        "layer-ranks",
        "layers",
        "One layer, by rank and step",
        about,
        spec,
        Table(["ranks", "layers skipped"], rows),
        _LEGEND,
        choice=("Layer", names, worst),
    )


def _percents(skipped: Sequence[Sequence[Sequence[Optional[float]]]]) -> List[Any]:
    return [[[None if v is None else round(v * 100) for v in row] for row in rows] for rows in skipped]


def _shares(skipped: Sequence[Sequence[Sequence[Optional[float]]]], place: int) -> List[str]:
    known = [value for rows in skipped for value in rows[place] if value is not None]
    return [words.percent(sum(known) / len(known) if known else None)]


def _table(layers: Data, names: Sequence[str]) -> Table:
    rows = []
    for place, name in enumerate(layers["names"]):
        first = layers["first_disagreement"][place]
        parted = f"{layers['disagreed_steps'][place]:,} of {layers['compared_steps']:,}"
        share = words.percent(layers["skipped_share"][place])
        rows.append([name, share, parted, "-" if first is None else f"{first:,}"])
    return Table(["layer", "skipped", "steps where ranks differ", "first"], rows)
