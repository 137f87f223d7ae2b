"""Ranks by steps by layers: what was skipped, and where ranks differ."""

from __future__ import annotations

from typing import List, Optional, Sequence

from ddpfix.cli.report import words
from ddpfix.cli.report.figures.figure import Data, Figure, Key, Table, heatmap, layer_names, rank_rows
from ddpfix.cli.report.figures.scales import Scales

# The states of one rank's layer in one step, in the order of their numbers in the figure.
STATES = (
    Key("var(--ran)", "ran on all ranks"),
    Key("var(--skipped)", "skipped on all ranks"),
    Key("var(--differs)", "ran here, skipped on another rank"),
    Key("var(--alone)", "skipped here, ran on another rank"),
)
# Shades between the first two, and between the last two, are of cells that hold several ranks or steps.
_RAN, _SKIPPED, _DIFFERS, _ALONE = (key.colour for key in STATES)
_SCALE = [[0, _RAN], [1 / 3, _SKIPPED], [0.5, _SKIPPED], [0.5, _DIFFERS], [2 / 3, _DIFFERS], [1, _ALONE]]


def make(data: Data, most: Scales) -> List[Figure]:
    """Return one picture: a row a layer and rank, or several ranks, so that rows of one layer lie beside each other."""
    layers = data["layers"]
    if layers is None or not layers["columns"] or not layers["mean_skipped"]:
        return []
    names, ranks = layer_names(layers["names"]), rank_rows(layers["rank_rows"])
    z = [
        [_cell(share, parted) for share, parted in zip(row, disagreed)]
        for skipped, disagreed in zip(layers["skipped"], layers["disagreed"])
        for row in skipped
    ]
    labels = [f"{name}, {rank}" if len(ranks) > 1 else name for name in names for rank in ranks]
    exact = all(first == last for first, last in [*layers["columns"], *layers["rank_rows"]])
    meta = {"kind": "layers", "disagreed": layers["disagreed"], "height": len(ranks)}
    if exact:
        meta["states"] = [key.meaning for key in STATES]
    spec = heatmap(z, layers["columns"], data["steps"], labels, _SCALE, (0, 3), meta)
    if len(ranks) > 1:
        spec["layout"]["shapes"] = [_line(place * len(ranks) - 0.5) for place in range(1, len(names))]
    about = "One row per layer and rank, one column per step."
    if not exact:
        about = "One row per layer and group of ranks. Shades: how often. Orange to red: where ranks differ."
    return [Figure("layers", "layers", "Skipped layers by rank and step", about, spec, _table(layers), STATES)]


def _cell(share: Optional[float], disagreed: int) -> Optional[float]:
    """0 to 1: how often it was skipped; 2 to 3: the same, where ranks differ."""
    return None if share is None else share + (2 if disagreed else 0)


def _line(y: float) -> Data:
    line = {"color": "var(--grid)", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _table(layers: Data) -> Table:
    rows: List[Sequence[str]] = []
    for place, name in enumerate(layers["names"]):
        first = layers["first_disagreement"][place]
        parted = f"{layers['disagreed_steps'][place]:,} of {layers['compared_steps']:,}"
        share = words.percent(layers["skipped_share"][place])
        rows.append([name, share, parted, "-" if first is None else f"{first:,}"])
    return Table(["layer", "skipped", "steps where ranks differ", "first"], rows)
