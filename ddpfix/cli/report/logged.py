"""What the lines of a trace tell beside the steps: settings, fixes, events, and how each rank ended."""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ddpfix.trace.reader import Run

Row = Dict[str, Any]
NO_END = "no exit record"


def read(runs: Sequence[Run]) -> Row:
    """Return all of it as plain data; what several ranks tell, once.

    Of the steps, the last one is needed alone.
    """
    header = runs[0].header if runs else {}
    ends: Dict[str, Row] = {}
    unended: List[Row] = []
    for run in runs:
        how = NO_END if run.end is None else run.end.get("how") or ""
        finding = _finding(run.end or {})
        ends.setdefault(how, {"how": how, "ranks": [], "finding": finding})["ranks"].append(run.rank)
        if run.end is None:
            unended.append(_under_way(run))
    lasts = [row.get("time") for run in runs for row in (*run.events[-1:], run.end or {})]
    rows = [time for run in runs for time in run.steps["time"][-1:] if time is not None]
    world_size = max((run.header.get("world_size") or 0 for run in runs), default=0)
    shown = ("ddpfix", "python", "torch", "command", "host", "started", "toolkits")
    settings = header.get("settings") or {}
    return {
        "world_size": world_size,
        "environment": {
            **{name: header.get(name) for name in shown},
            "hosts": Counter(run.header.get("host") or "" for run in runs),
            "until": max([time for time in lasts if time is not None] + rows, default=None),
        },
        "ranks_exited": [run.rank for run in runs if run.end is None and has_exited(run.header)],
        "last_row": max(rows, default=0.0),
        "unended": unended,
        "ddpfix_settings": [{"name": name, **each} for name, each in settings.items()],
        "settings": _once(((run.rank, row) for run in runs for row in run.settings), _SETTING),
        "patches": _once(((run.rank, row) for run in runs for row in run.header.get("patches") or ()), _PATCH),
        "events": _once(((run.rank, row) for run in runs for row in run.events), _EVENT),
        "ends": list(ends.values()),
    }


_SETTING, _PATCH, _EVENT = ("name", "requested", "effective", "note"), ("id", "state", "reason"), ("level", "text")


def _once(told: Iterable[Tuple[int, Row]], names: Sequence[str]) -> List[Row]:
    """Return the rows that differ in these names, with the ranks, their number of times, and their first step."""
    found: Dict[Tuple[str, ...], Row] = {}
    for rank, row in told:
        key = tuple("" if row.get(name) is None else str(row[name]) for name in names)
        known = found.setdefault(key, {**dict(zip(names, key)), "times": 0, "ranks": [], "step": None, "time": None})
        known["times"] += 1
        if known["ranks"][-1:] != [rank]:
            known["ranks"].append(rank)
        time = row.get("time")
        if isinstance(time, (int, float)) and (known["time"] is None or time < known["time"]):
            known["step"], known["time"] = row.get("step"), time
        if names is _EVENT:
            known["finding"] = known.get("finding") or _finding(row)
    return list(found.values())


def _finding(row: Row) -> Optional[Row]:
    """Return the finding that a line tells, if it does."""
    told = row.get("finding")
    if not told:
        return None
    texts = {name: told.get(name) or "" for name in ("kind", "where", "cause", "advice")}
    return {"ranks": told.get("ranks") or [], **texts}


def _under_way(run: Run) -> Row:
    """Return the step of a rank without an end that was under way, and its batch, as far as the trace has them."""
    done: int = max(run.steps["step"][-1:], default=0)
    begun = run.begins[-1] if run.begins else {}
    step, shape = begun.get("step") or 0, begun.get("shape")
    if step > done and shape:
        return {"rank": run.rank, "done": done, "step": step, "shape": shape}
    # What has begun says no more than what has ended.
    return {"rank": run.rank, "done": max(done, step - 1), "step": None, "shape": None}


def has_exited(header: Row) -> bool:
    """Return whether a process has exited; False where it ran on another machine, and nobody here knows."""
    pid = header.get("pid") or 0
    if not 0 < pid < 2**31 or header.get("host") != socket.gethostname() or os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
