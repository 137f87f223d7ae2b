"""One run as plain data: what ``--json`` writes and what figures and findings are made from.

The rows of each rank become arrays, with a hundred bytes for each row and twelve for each parameter without a gradient.
Tables of them have columns of steps and rows of ranks, so that they do not grow with a run.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ddpfix.cli.report import logged, memory, words
from ddpfix.cli.report.memory import Array
from ddpfix.trace import reader

SECONDS = ("total", "data", "forward", "backward", "wait", "optimizer")
# Parts of a step, as the figures show them: the backward without its wait, and what is none of the others.
PARTS = ("data", "forward", "backward", "wait", "optimizer", "other")
# A rank is called a straggler if its own time is so much longer than that of the others (median), and if it is also
# the slowest more often than the turns of chance make it, or if its time is even this much longer.
SLOWER, MUCH_SLOWER = 1.05, 1.5
# Fewer steps than these tell nothing about who is slow; a step that takes a rank so many times its usual time is named.
ENOUGH, OUTLYING = 10, 4.0
# Columns of steps and rows of ranks in a table, rows of all layers together, and names in a list.
COLUMNS, ROWS, LAYER_ROWS, NAMED = 400, 200, 96, 50


class Rank:
    """The rows of one rank, as arrays.

    Attributes:
        values: numbers by column, and ``own``: the step without waits; not a number where there is none.
        parts: seconds by part of a step.
    """

    def __init__(self, run: reader.Run) -> None:
        columns = run.steps
        self.rank = run.rank
        self.steps: Array = np.array(columns["step"], dtype=np.int64)
        self.values: Dict[str, Array] = {
            name: np.array(columns[name], dtype=float) for name in (*SECONDS, "peak", "used", "reserved")
        }
        self.peaks = memory.peaks(run.rank, self.steps, self.values["peak"], columns["shape"])
        self.growth = memory.growth(run.rank, self.steps, self.values["used"], columns["shape"])
        self.skipped, self.unused = Lists(columns["skipped"]), Lists(columns["unused"])
        if len(self.steps) > 3 and self.steps[0] == 1:
            # The first step of a process has what is done once (imports, buffers, compilation): no sample of a step.
            for name in SECONDS:
                self.values[name][0] = np.nan
        total, wait = self.values["total"], self.values["wait"]
        self.values["own"] = np.maximum(0.0, total - wait)
        self.parts = {name: self.values[name] for name in SECONDS if name != "total"}
        self.parts["backward"] = np.maximum(0.0, self.parts["backward"] - np.nan_to_num(wait))
        self.parts["other"] = np.maximum(0.0, total - sum(map(np.nan_to_num, self.parts.values())))

    def of(self, how: Callable[[Array], Any]) -> Dict[str, Optional[float]]:
        """Return one number for each part of a step, for the whole and for ``own``; None where nothing is known."""
        every = {**self.parts, "total": self.values["total"], "own": self.values["own"]}
        known = {name: values[~np.isnan(values)] for name, values in every.items()}
        return {name: float(how(values)) if len(values) else None for name, values in known.items()}


class Lists:
    """A column of lists of numbers: which rows have one, the numbers of all lists, and the row of each of them."""

    def __init__(self, column: Sequence[Optional[List[int]]]) -> None:
        self.known = np.array([each is not None for each in column], dtype=bool)
        self.numbers = np.array([number for each in column for number in each or ()], dtype=np.int64)
        self.rows: Array = np.repeat(np.arange(len(column), dtype=np.int32), [len(each or ()) for each in column])


class Table:
    """Where each rank and step lies in the tables of a run."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self.ranks = ranks
        #: The steps of any rank.
        self.steps: Array = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(each.steps for each in ranks)]))
        self.last = int(self.steps[-1]) if len(self.steps) else 0
        self.width = max(1, -(-self.last // COLUMNS))
        self.count = -(-self.last // self.width)
        self.spans = [(column * self.width + 1, (column + 1) * self.width) for column in range(self.count)]

    def columns(self, steps: Array) -> Array:
        return (steps - 1) // self.width

    def places(self, steps: Array) -> Array:
        """Return where each step is among all of them."""
        return np.searchsorted(self.steps, steps)

    def cells(self, *sizes: int) -> Array:
        return np.zeros((*sizes, self.count))

    def rows(self, most: int) -> Tuple[List[Tuple[int, int]], List[int]]:
        """Return the first and last rank of each row of at most so many, which neighbours share; each rank's row."""
        size = max(1, -(-len(self.ranks) // most))
        parts = [self.ranks[place : place + size] for place in range(0, len(self.ranks), size)]
        spans = [(part[0].rank, part[-1].rank) for part in parts]
        return spans, [place // size for place in range(len(self.ranks))]


def load(folder: Path) -> Dict[str, Any]:
    """Return the trace in a folder, added up; TraceError where a file is damaged."""
    runs, ranks = [], []
    for _, attempt, file in reader.files(folder):
        if attempt is None:
            runs.append(reader.read_run(file))
            ranks.append(Rank(runs[-1]))
            # The arrays have the rows.
            runs[-1].steps = {name: runs[-1].steps[name][-1:] for name in ("step", "time")}
    told, table = logged.read(runs), Table(ranks)
    there = {each.rank for each in ranks}
    missing = [rank for rank in range(min(told["world_size"], 2**20)) if rank not in there]
    layers, parameters = _names(runs)
    return {
        "name": folder.resolve().name or str(folder),
        "ranks": len(ranks),
        "ranks_missing": missing[:NAMED],
        "ranks_missing_count": len(missing),
        "steps": table.last,
        "rows": sum(len(each.steps) for each in ranks),
        "one_row_stands_for": max((int(np.diff(each.steps).max()) for each in ranks if len(each.steps) > 1), default=1),
        "columns": table.spans,
        "rank_rows": table.rows(ROWS)[0],
        "time": _time(table),
        "memory": _memory(table),
        "layers": _layers(table, layers),
        "unused": _unused(table, parameters),
        **told,
    }


def _names(runs: Sequence[reader.Run]) -> Tuple[List[str], List[str]]:
    """Return the names that indices of the steps are for: all models are numbered one after the other."""
    found: Dict[str, List[str]] = {"layer": [], "parameter": []}
    for run in runs:
        for model in run.models:
            for kind, names in found.items():
                # What another rank has told already stays.
                names += (model.get(f"{kind}s") or [])[max(0, len(names) - (model.get(f"first_{kind}") or 0)) :]
    return found["layer"], found["parameter"]


def _listed(cells: Array) -> Any:
    """Return cells as lists, with None in place of what is not a number."""
    found: Array = np.where(np.isnan(cells), None, cells)
    return found.tolist()


def _divided(sums: Array, weights: Array) -> Array:
    """Return means: not a number where there is no weight."""
    return np.divide(sums, weights, out=np.full(np.shape(sums), np.nan), where=weights != 0)


def _time(table: Table) -> Dict[str, Any]:
    spans, row_of = table.rows(ROWS)
    # Of the ranks that share a row, the slowest: among many a straggler would be lost in the mean.
    cells = np.full((len(spans), table.count), np.nan)
    # The longest time of a rank's own in each step, whose it was, and how many ranks say so.
    longest, who, told = np.full(len(table.steps), -1.0), np.zeros(len(table.steps)), np.zeros(len(table.steps))
    medians, means, slow = [], [], []
    for rank, row in zip(table.ranks, row_of):
        medians.append(rank.of(np.median))
        means.append(rank.of(np.mean))
        own, columns = rank.values["own"], table.columns(rank.steps)
        known = ~np.isnan(own)
        sums, weights = (np.bincount(columns[known], each, table.count) for each in (own[known], None))
        cells[row] = np.fmax(cells[row], _divided(sums, weights))
        places = table.places(rank.steps[known])
        is_longer = own[known] > longest[places]
        longest[places[is_longer]], who[places[is_longer]] = own[known][is_longer], rank.rank
        told[places] += 1
        usual = medians[-1]["own"] or math.inf
        outlying = np.flatnonzero(own > OUTLYING * usual)
        slow += [(float(own[place]), usual, int(rank.steps[place]), rank.rank) for place in outlying]
    slowest = Counter(who[told > 1].tolist())
    per_rank = [
        {"rank": rank.rank, **of, "steps": len(rank.steps), "slowest_steps": slowest[rank.rank]}
        for rank, of in zip(table.ranks, medians)
    ]
    judged = sum(slowest.values())
    return {
        "parts": list(PARTS),
        "per_rank": per_rank,
        "mean": {name: words.mean([each[name] for each in means]) for name in (*PARTS, "total", "own")},
        "judged_steps": judged,
        "straggler": _straggler(per_rank, judged),
        # The steps that took a rank many times its usual time, and the longest of them.
        "outliers": {"count": len(slow), "worst": dict(zip(("own", "usual", "step", "rank"), max(slow, default=())))},
        "own": _listed(cells),
    }


def _straggler(per_rank: List[Dict[str, Any]], judged: int) -> Optional[Dict[str, Any]]:
    """Return the rank whose own time is longest, by medians as the bars have them; None without times of two ranks.

    Args:
        judged: how many steps tell which rank was the slowest.
    """
    timed = [each for each in per_rank if each["own"] is not None]
    if len(timed) < 2:
        return None
    worst = max(timed, key=lambda each: (each["own"], -each["rank"]))
    others = {
        name: median(each[name] or 0.0 for each in timed if each is not worst) for name in (*PARTS, "total", "own")
    }
    excess = {name: worst[name] - others[name] for name in PARTS if name != "wait" and worst[name] is not None}
    part = max(excess, key=lambda name: excess[name], default=None)
    ratio, chance, slowest = worst["own"] / (others["own"] or math.inf), 1 / len(timed), worst["slowest_steps"]
    often = judged * chance + 3 * math.sqrt(judged * chance * (1 - chance))
    is_clear = (ratio >= MUCH_SLOWER and slowest > judged * chance) or (ratio >= SLOWER and slowest > often)
    return {
        "rank": worst["rank"],
        "own": worst["own"],
        "others": others["own"],
        "clear": judged >= ENOUGH and is_clear,
        "others_wait_share": others["wait"] / others["total"] if others["total"] else None,
        "slowest_steps": slowest,
        "part": part,
        "part_seconds": worst[part] if part else None,
        "part_others": others[part] if part else None,
    }


def _memory(table: Table) -> Dict[str, Any]:
    """Return the most memory so far by row of ranks, and the steps that raised it for the run, with their batches."""
    spans, row_of = table.rows(ROWS)
    cells = np.full((len(spans), table.count), np.nan)
    for rank, row in zip(table.ranks, row_of):
        np.fmax.at(cells[row], table.columns(rank.steps), rank.values["peak"])
    growth = max((each.growth for each in table.ranks if each.growth is not None), default=None)
    return {
        "of": "process" if all(np.isnan(each.values["reserved"]).all() for each in table.ranks) else "gpu",
        # A column without a row of the trace has what the one before it had.
        "peak": _listed(np.fmax.accumulate(cells, axis=1)),
        "records": memory.records(peak for each in table.ranks for peak in each.peaks),
        "growth": None if growth is None else growth._asdict(),
    }


def _layers(table: Table, names: List[str]) -> Optional[Dict[str, Any]]:
    """Return the layers that ranks skipped; None where the model has none to skip, or nobody noted it."""
    most = max((int(each.skipped.numbers.max(initial=-1)) for each in table.ranks), default=-1)
    names = [*names, *(f"layer {index}" for index in range(len(names), most + 1))]
    told = sum(int(each.skipped.known.sum()) for each in table.ranks)
    if not names or not told:
        return None
    spans, row_of = table.rows(max(1, LAYER_ROWS // len(names)))
    skips, known = table.cells(len(names), len(spans)), table.cells(len(spans))
    # How many ranks skipped a layer in a step, and how many ranks say so.
    skipped: Array = np.zeros((len(names), len(table.steps)), dtype=np.int32)
    of: Array = np.zeros(len(table.steps), dtype=np.int32)
    for rank, row in zip(table.ranks, row_of):
        lists, columns, places = rank.skipped, table.columns(rank.steps), table.places(rank.steps)
        np.add.at(skips, (lists.numbers, row, columns[lists.rows]), 1)
        np.add.at(known[row], columns[lists.known], 1)
        # A layer that is called twice is skipped twice.
        layers, those = np.unique(np.stack([lists.numbers, lists.rows]), axis=1)
        skipped[layers, places[those]] += 1
        of[places[lists.known]] += 1
    parted = (skipped > 0) & (skipped < of)
    disagreed = table.cells(len(names))
    layers, those = np.nonzero(parted)
    np.add.at(disagreed, (layers, table.columns(table.steps[those])), 1)
    steps = table.steps[parted.any(axis=0)]
    return {
        "names": names,
        "rank_rows": spans,
        "skipped": _listed(np.round(_divided(skips, np.broadcast_to(known, skips.shape)), 4)),
        "disagreed": disagreed.astype(int).tolist(),
        "disagreed_steps": parted.sum(axis=1).tolist(),
        "compared_steps": int((of > 1).sum()),
        "steps_with_disagreement": len(steps),
        "first_step_with_disagreement": int(steps[0]) if len(steps) else None,
        "mean_skipped": float(skips.sum()) / told,
    }


def _unused(table: Table, names: List[str]) -> Dict[str, Any]:
    """Parameters without a gradient, those with the same history together, by how often they had none."""
    numbers = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(each.unused.numbers for each in table.ranks)]))
    counts, known = table.cells(len(numbers)), table.cells()
    for rank in table.ranks:
        lists, columns = rank.unused, table.columns(rank.steps)
        np.add.at(counts, (np.searchsorted(numbers, lists.numbers), columns[lists.rows]), 1)
        np.add.at(known, columns[lists.known], 1)
    told = int(known.sum())
    histories: Dict[bytes, List[int]] = {}
    for row, history in enumerate(counts):
        histories.setdefault(history.tobytes(), []).append(row)
    shown = [names[number] if number < len(names) else f"parameter {number}" for number in numbers.tolist()]
    groups = [_group([shown[row] for row in rows], counts[rows[0]], known) for rows in histories.values()]
    groups.sort(key=lambda group: -float(group["share"]))
    return {
        "told": told,
        "mean": float(counts.sum()) / told if told else None,
        "parameters": len(names),
        "always": sum(group["count"] for group in groups if group["always"]),
        "sometimes": sum(group["count"] for group in groups if not group["always"]),
        "groups_count": len(groups),
        "groups": groups[:NAMED],
    }


def _group(names: List[str], counts: Array, known: Array) -> Dict[str, Any]:
    """Return parameters with the same history, below one name: the part that all of them begin with."""
    common = words.common(names)
    several = f"{'.'.join(common)}.* ({len(names)} parameters)" if common else f"{names[0]} and {len(names) - 1} more"
    return {
        "name": several if len(names) > 1 else names[0],
        "names": names[:NAMED],
        "count": len(names),
        "share": float(counts.sum() / known.sum()),
        "always": bool(counts.sum() >= known.sum()),
        "shares": _listed(np.round(_divided(counts, known), 4)),
    }
