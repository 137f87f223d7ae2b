"""Where the time of each rank goes, and which rank is slow when."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddpfix.cli.report import words
from ddpfix.cli.report.figures.figure import Data, Figure, Key, Table, heatmap, label, layout, rank_rows, tidy
from ddpfix.cli.report.figures.scales import Scales

BARS = 48
_COLOURS = {
    "data": "var(--data)",
    "forward": "var(--forward)",
    "backward": "var(--backward)",
    "wait": "var(--wait)",
    "optimizer": "var(--optimizer)",
    "other": "var(--other)",
}
_SCALE = [[0, "var(--ran)"], [0.5, "var(--skipped)"], [1, "var(--alone)"]]


def make(data: Data, most: Scales) -> List[Figure]:
    if data["time"]["mean"]["total"] is None:
        return []
    figures = [_bars(data, most.seconds)]
    if any(sum(value is not None for value in row) > 1 for row in data["time"]["own"]):
        figures.append(_map(data, most.own))
    return figures


def _groups(per_rank: Sequence[Data], straggler: Optional[int]) -> List[Tuple[str, List[Data]]]:
    """Return a bar a rank; of many ranks, a bar for neighbours, and one for the straggler alone."""
    if len(per_rank) <= BARS:
        return [(_named(each["rank"], straggler), [each]) for each in per_rank]
    size = -(-len(per_rank) // BARS)
    parts = [list(per_rank[place : place + size]) for place in range(0, len(per_rank), size)]
    groups = [(words.span(part[0]["rank"], part[-1]["rank"], "rank"), part) for part in parts]
    alone = [each for each in per_rank if each["rank"] == straggler]
    return [(_named(each["rank"], straggler), [each]) for each in alone] + groups


def _named(rank: int, straggler: Optional[int]) -> str:
    return f"rank {rank} (straggler)" if rank == straggler else f"rank {rank}"


def _bars(data: Data, longest: float) -> Figure:
    time = data["time"]
    found = time["straggler"]
    groups = _groups(time["per_rank"], found["rank"] if found and found["clear"] else None)
    labels = [label(name) for name, _ in groups]
    traces = [_part(part, groups, labels) for part in time["parts"] if any(each[part] for each in time["per_rank"])]
    drawn = layout(
        "seconds a step",
        "",
        max(130, min(620, 70 + 26 * len(groups))),
        barmode="stack",
        bargap=0.25,
        xaxis={"range": [0, longest]},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
    )
    about = "Median seconds per step of each rank, first step excluded. Backward excludes the wait."
    if len(time["per_rank"]) > BARS:
        about += " A bar is the mean of neighbouring ranks; the straggler has a separate bar."
    spec = tidy({"data": traces, "layout": drawn, "meta": {"kind": "plain"}})
    legend = [Key(trace["marker"]["color"], trace["name"]) for trace in traces]
    return Figure("time", "time", "Time per step of each rank", about, spec, _table(time), legend)


def _part(part: str, groups: Sequence[Tuple[str, List[Data]]], labels: Sequence[str]) -> Data:
    values = [_mean([each[part] for each in members]) for _, members in groups]
    shares = [_share(value, members) for value, (_, members) in zip(values, groups)]
    shown = {"wait": "waiting for other ranks"}.get(part, part)
    return {
        "type": "bar",
        "orientation": "h",
        "name": shown,
        "y": list(labels),
        "x": [value or 0.0 for value in values],
        "customdata": [words.percent(share) for share in shares],
        "marker": {"color": _COLOURS[part]},
        "hovertemplate": f"%{{y}}: {shown} %{{x:.4f}} s, %{{customdata}}<extra></extra>",
    }


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _share(value: Optional[float], members: Sequence[Data]) -> Optional[float]:
    total = _mean([each["total"] for each in members])
    return value / total if value is not None and total else None


def _table(time: Data) -> Table:
    """By rank, the slowest first."""
    parts = ("own", *time["parts"], "total")
    order = sorted(time["per_rank"], key=lambda each: (-(each["own"] or 0.0), each["rank"]))
    rows = [
        [str(each["rank"]), *(words.seconds(each[part]) for part in parts), f"{each['slowest_steps']:,}"]
        for each in order
    ]
    return Table(["rank", "compute", *time["parts"], "step", "slowest in steps"], rows)


def _map(data: Data, ends: Tuple[float, float]) -> Figure:
    own = data["time"]["own"]
    labels = rank_rows(data["rank_rows"])
    meta: Dict[str, Any] = {"kind": "seconds"}
    spec = heatmap(own, data["columns"], data["steps"], labels, _SCALE, ends, meta)
    rows = [
        [label, words.seconds(_mean(row)), words.seconds(_most(row)), words.seconds(_mean(waits))]
        for label, row, waits in zip(labels, own, data["time"]["wait"])
    ]
    return Figure(
        "own",
        "time",
        "Compute time of each rank, by step",
        "Compute time per step, waits excluded. Red steps hold up the other ranks."
        + (" A row shows the slowest of its ranks." if len(labels) < data["ranks"] else ""),
        spec,
        Table(["ranks", "mean compute of the slowest", "most", "mean wait"], rows),
        _bar(own, ends),
        is_scale=True,
    )


def _bar(own: Sequence[Sequence[Optional[float]]], ends: Tuple[float, float]) -> List[Key]:
    """Return the colours of the scale; its ends say so where cells lie beyond them."""
    known = [value for row in own for value in row if value is not None]
    low, top = ends
    return [
        Key("var(--ran)", words.seconds(low) + (" and less" if min(known) < low else "")),
        Key("var(--skipped)", words.seconds((low + top) / 2)),
        Key("var(--alone)", words.seconds(top) + (" and more" if max(known) > top else "")),
    ]


def _most(values: Sequence[Optional[float]]) -> Optional[float]:
    return max((value for value in values if value is not None), default=None)
