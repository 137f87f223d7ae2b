"""One run as plain data: what ``--json`` writes and what figures and findings are made from."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Optional

import numpy as np

from ddpfix.cli.report.gather import Gathered
from ddpfix.cli.report.grids import Array, divided, listed
from ddpfix.cli.report.words import mean
from ddpfix.trace import reader

VERSION = 1
# Parts of a step, as the figures show them: the backward without its wait, and what is none of the others.
PARTS = ("data", "forward", "backward", "wait", "optimizer", "other")
# A rank is called a straggler if its own time is so much longer than that of the others (median), and if it is also
# the slowest more often than the turns of chance make it, or if its time is even this much longer.
SLOWER, MUCH_SLOWER = 1.05, 1.5
# Fewer steps than these tell nothing about who is slow.
ENOUGH = 10
RECORDS, NAMED = 25, 50


def load(folder: Path) -> Dict[str, Any]:
    """Return the trace in a folder, added up, one rank's files in memory at a time; TraceError where one is damaged."""
    files = [(rank, file) for rank, attempt, file in reader.files(folder) if attempt is None]
    earlier = sum(attempt is not None for _, attempt, _ in reader.files(folder))
    gathered = Gathered([rank for rank, _ in files])
    for _, file in files:
        gathered.add(reader.read_run(file))
    name = folder.resolve().name or str(folder)
    return {"version": VERSION, "name": name, **data(gathered), "earlier_processes": earlier}


def data(gathered: Gathered) -> Dict[str, Any]:
    """Return all that was gathered, as lists, numbers and strings."""
    told = gathered.logged.data()
    expected = gathered.logged.world_size
    missing = [rank for rank in range(min(expected, 2**20)) if rank not in gathered.rank_rows.of]
    return {
        "ranks": len(gathered.ranks),
        "world_size": expected,
        "ranks_missing": missing[:NAMED],
        "ranks_missing_count": len(missing),
        "steps": gathered.last_step,
        "rows": gathered.rows,
        "one_row_stands_for": gathered.thinned,
        "columns": [list(span) for span in gathered.timeline.spans()],
        "rank_rows": [list(span) for span in gathered.rank_rows.spans],
        "series": {name: series.data() for name, series in gathered.series.items()},
        "time": _time(gathered),
        "memory": _memory(gathered),
        "epochs": [{"epoch": epoch, "step": step} for epoch, step in sorted(gathered.epochs.items())],
        "layers": _layers(gathered),
        "unused": _unused(gathered),
        "samples_a_step": None if missing else _samples(gathered),
        "gradients": {"sent": gathered.series["sent"].total()},
        "loss_lost": {"count": gathered.lost, "first": gathered.first_lost},
        **told,
    }


def _samples(gathered: Gathered) -> Optional[float]:
    """Return the samples that all ranks together train in a step; None where loaders do not tell."""
    mean = gathered.series["samples"].overall()
    return None if mean is None else mean * len(gathered.ranks)


def _time(gathered: Gathered) -> Dict[str, Any]:
    slowest: Dict[int, int] = {}
    judged = 0
    for step in gathered.steps.values():
        if step.timed > 1:
            judged += 1
            slowest[step.who] = slowest.get(step.who, 0) + 1
    names = (*PARTS, "total", "own")
    per_rank = [
        {
            "rank": rank,
            **{name: medians.get(name) for name in names},
            "steps": gathered.step_counts[rank],
            "slowest_steps": slowest.get(rank, 0),
        }
        for rank, medians in gathered.medians.items()
    ]
    return {
        "parts": list(PARTS),
        "per_rank": per_rank,
        "mean": {name: mean([each.get(name) for each in gathered.means.values()]) for name in names},
        "judged_steps": judged,
        "straggler": _straggler(per_rank, judged),
        # The steps that took a rank many times its usual time, and the longest of them.
        "outliers": {"count": gathered.outliers, "worst": gathered.worst and gathered.worst._asdict()},
        "own": listed(gathered.own.cells),
        "wait": listed(gathered.waits.values()),
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
    others = [each for each in timed if each is not worst]
    mine, own = worst["own"], median(each["own"] for each in others)
    excess = {
        name: worst[name] - median(each[name] or 0.0 for each in others)
        for name in PARTS
        if name != "wait" and worst[name] is not None
    }
    part = max(excess, key=lambda name: excess[name], default=None)
    total = median(each["total"] for each in others)
    waited = median(each["wait"] for each in others)
    return {
        "rank": worst["rank"],
        "own": mine,
        "others": own,
        "clear": _is_clear(mine / own if own else 0.0, worst["slowest_steps"], judged, len(timed)),
        "others_wait_share": waited / total if total else None,
        "slowest_steps": worst["slowest_steps"],
        "part": part,
        "part_seconds": worst[part] if part else None,
        "part_others": median(each[part] or 0.0 for each in others) if part else None,
    }


def _is_clear(ratio: float, slowest: int, judged: int, ranks: int) -> bool:
    """Return whether a rank that takes so much longer than others, the slowest in so many steps, is a straggler."""
    if judged < ENOUGH:
        return False
    chance = 1 / ranks
    often = judged * chance + 3 * math.sqrt(judged * chance * (1 - chance))
    return (ratio >= MUCH_SLOWER and slowest > judged * chance) or (ratio >= SLOWER and slowest > often)


def _memory(gathered: Gathered) -> Dict[str, Any]:
    """Return the most memory so far by row of ranks, and the steps that raised it for the run, with their batches."""
    records = [peak._asdict() for peak in gathered.peaks]
    return {
        "of": "gpu" if gathered.series["reserved"].overall() is not None else "process",
        # A column without a row of the trace has what the one before it had.
        "peak": listed(np.fmax.accumulate(gathered.peak_rows.cells, axis=1)),
        "records": _largest_rises(records),
        "growth": None if gathered.growth is None else gathered.growth._asdict(),
    }


def _largest_rises(records: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return the first one, the last one, and those between that raised it most."""
    for before, record in zip([None, *records], records):
        record["rise"] = record["bytes"] - (before["bytes"] if before else 0)
    if len(records) <= RECORDS:
        return records
    between = sorted(records[1:-1], key=lambda record: record["rise"], reverse=True)[: RECORDS - 2]
    return [records[0], *sorted(between, key=lambda record: int(record["step"])), records[-1]]


def _layers(gathered: Gathered) -> Optional[Dict[str, Any]]:
    """Return the layers that ranks skipped; None where the model has none to skip, or nobody noted it."""
    if gathered.skipped is None:
        return None
    timeline, names = gathered.timeline, gathered.layers
    compared = [(number, step) for number, step in sorted(gathered.steps.items()) if step.ranks > 1]
    parted = [(number, step.some & ~step.every) for number, step in compared if step.some & ~step.every]
    columns = [[0] * timeline.count for _ in names]
    for number, mask in parted:
        for layer in _bits(mask):
            columns[layer][(number - 1) // timeline.width] += 1
    skipped, known = gathered.skipped.skipped(len(names)), gathered.skipped.known.cells
    shares = divided(skipped, np.broadcast_to(known, skipped.shape))
    return {
        "names": names,
        "columns": [list(span) for span in timeline.spans()],
        "rank_rows": [list(span) for span in gathered.skipped.rows.spans],
        "skipped": listed(np.round(shares, 4)),
        "disagreed": columns,
        "disagreed_steps": [sum(each) for each in columns],
        "compared_steps": len(compared),
        "steps_with_disagreement": len(parted),
        "first_step_with_disagreement": parted[0][0] if parted else None,
        "mean_skipped": gathered.series["skipped"].overall(),
    }


def _bits(mask: int) -> List[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


def _unused(gathered: Gathered) -> Dict[str, Any]:
    """Parameters without a gradient, those with the same history together, by how often they had none."""
    known = gathered.unused_known.cells[0]
    whole = float(known.sum())
    groups: Dict[bytes, List[int]] = {}
    for index, row in sorted(gathered.unused_rows.items()):
        groups.setdefault(gathered.unused.cells[row].tobytes(), []).append(index)
    entries = [_group(gathered, members, known, whole) for members in groups.values()]
    entries.sort(key=lambda entry: -float(entry["share"]))
    return {
        "known": whole > 0,
        "told": gathered.unused_told,
        "parameters": len(gathered.parameters),
        "always": sum(entry["count"] for entry in entries if entry["always"]),
        "sometimes": sum(entry["count"] for entry in entries if not entry["always"]),
        "groups_count": len(entries),
        "groups": entries[:NAMED],
    }


def _group(gathered: Gathered, members: List[int], known: Array, whole: float) -> Dict[str, Any]:
    counts = gathered.unused.cells[gathered.unused_rows[members[0]]]
    names = [gathered.parameters[i] if i < len(gathered.parameters) else f"parameter {i}" for i in members]
    return {
        "name": _together(names),
        "names": names[:NAMED],
        "count": len(names),
        "share": float(counts.sum()) / whole if whole else 0.0,
        "always": bool(whole) and bool(counts.sum() >= whole),
        "shares": listed(np.round(divided(counts, known), 4)),
    }


def _together(names: List[str]) -> str:
    """Return one name for parameters with the same history: the part that all of them begin with."""
    if len(names) == 1:
        return names[0]
    common: List[str] = []
    for parts in zip(*(name.split(".") for name in names)):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return f"{'.'.join(common)}.* ({len(names)} parameters)" if common else f"{names[0]} and {len(names) - 1} more"
