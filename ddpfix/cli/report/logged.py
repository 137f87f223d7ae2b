"""What the lines of a trace tell beside the steps: settings, patches, events, places, and how each rank ended."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List, Optional, Tuple

from ddpfix.trace import clean
from ddpfix.trace.reader import Run

# Texts that differ; ranks that are named a text.
TEXTS, NAMED = 500, 8
# What is text of a finding.
_PARTS = ("kind", "where", "cause", "advice")


class Occurrences:
    """The count of one report, the ranks that made it, and its first step."""

    def __init__(self) -> None:
        self.count, self.ranks, self.step, self.time = 0, [], None, None  # type: int, List[int], Any, Any
        self._all = 0

    def add(self, rank: int, step: Any, time: Any) -> None:
        self.count += 1
        if not self.ranks or self.ranks[-1] != rank:
            self._all += 1
            if len(self.ranks) < NAMED:
                self.ranks.append(rank)
        if time is not None and (self.time is None or time < self.time):
            self.step, self.time = step, time

    def data(self) -> Dict[str, Any]:
        return {"times": self.count, "ranks": self.ranks, "of_ranks": self._all, "step": self.step, "time": self.time}


class Logged:
    """The lines of all ranks, each text once."""

    def __init__(self) -> None:
        self.header: Dict[str, Any] = {}
        self.hosts: Dict[str, int] = {}
        self.world_size = 0
        self.ends: Dict[str, List[int]] = {}
        # The finding about each of these ends, and the one that an event tells.
        self._of_ends: Dict[str, Optional[Dict[str, Any]]] = {}
        self._findings: Dict[Tuple[str, str], Optional[Dict[str, Any]]] = {}
        self.left_out = 0
        # The last moment of any rank, in unix seconds; ranks without an end whose process this machine knows to have
        # exited.
        self.until: Optional[float] = None
        self.exited: List[int] = []
        # The last moment of any rank's rows; the ranks without an end, and the step that was under way.
        self.last_row = 0.0
        self.unended: List[Dict[str, Any]] = []
        self._events: Dict[Tuple[str, str], Occurrences] = {}
        self._settings: Dict[Tuple[str, str, str, str], Occurrences] = {}
        self._patches: Dict[Tuple[str, str, str], Occurrences] = {}
        self._places: Dict[Tuple[str], Occurrences] = {}

    def add(self, run: Run) -> None:
        header = clean.table(run.header)
        if not self.header:
            self.header = _head(header)
        self.world_size = max(self.world_size, clean.whole(header.get("world_size")) or 0)
        host = clean.text(header.get("host"))
        if host in self.hosts or len(self.hosts) < TEXTS:
            self.hosts[host] = self.hosts.get(host, 0) + 1
        how = "no exit record" if run.end is None else clean.text(run.end.get("how"))
        how = how if how in self.ends or len(self.ends) < TEXTS else "other"
        self.ends.setdefault(how, []).append(run.rank)
        self._of_ends.setdefault(how, _finding(clean.table(run.end)))
        if run.end is None and has_exited(header.get("pid"), header.get("host")):
            self.exited.append(run.rank)
        self._last_steps(run)
        moments = [row.get("time") for row in (*clean.rows(run.events)[-1:], clean.table(run.end))]
        known = list(filter(None, map(clean.number, [*moments, *run.steps["time"][-1:]])))
        self.until = max([*known, *([self.until] if self.until else [])], default=None)
        self._lines(run, header)

    def _last_steps(self, run: Run) -> None:
        moments, steps = run.steps["time"][-1:], run.steps["step"][-1:]
        self.last_row = max([self.last_row, *filter(None, map(clean.number, moments))])
        if run.end is None:
            done = clean.whole(steps[0]) or 0 if steps else 0
            begun = (clean.rows(run.begins) or [{}])[-1]
            step, shape = clean.whole(begun.get("step"), done + 1), clean.shape(begun.get("shape"))
            if step is None or not shape:
                # What has begun says no more than what has ended.
                done, step, shape = max(done, (step or 1) - 1), None, None
            self.unended.append({"rank": run.rank, "done": done, "step": step, "shape": shape})

    def _lines(self, run: Run, header: Dict[str, Any]) -> None:
        for row in clean.rows(run.events):
            key = (clean.text(row.get("level")), clean.text(row.get("text")))
            self._note(self._events, key, run.rank, row)
            if key in self._events:
                self._findings[key] = self._findings.get(key) or _finding(row)
        for row in clean.rows(run.settings):
            names = ("name", "requested", "effective", "note")
            asked = tuple(clean.text(row.get(name)) for name in names)
            self._note(self._settings, asked, run.rank, row)
        for row in clean.rows(header.get("patches")):
            done = tuple(clean.text(row.get(name)) for name in ("id", "state", "reason"))
            self._note(self._patches, done, run.rank, row)
        for row in clean.rows(run.stalls):
            self._note(self._places, (clean.text(row.get("phase")),), run.rank, row)

    def _note(self, seen: Dict[Any, Occurrences], key: Any, rank: int, row: Dict[str, Any]) -> None:
        if key not in seen:
            if len(seen) >= TEXTS:
                self.left_out += 1
                return
            seen[key] = Occurrences()
        seen[key].add(rank, clean.whole(row.get("step")), clean.number(row.get("time")))

    def data(self) -> Dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "environment": {**self.header, "world_size": self.world_size, "hosts": self.hosts, "until": self.until},
            "ranks_exited": self.exited,
            "last_row": self.last_row,
            "unended": self.unended,
            "ddpfix_settings": self.header.get("settings", []),
            "settings": _rows(self._settings, ("name", "requested", "effective", "note")),
            "patches": _rows(self._patches, ("id", "state", "reason")),
            "events": [
                {**row, "finding": self._findings.get(key)}
                for key, row in zip(self._events, _rows(self._events, ("level", "text")))
            ],
            "stalls": _rows(self._places, ("phase",)),
            "texts_left_out": self.left_out,
            "ends": [{"how": how, "ranks": ranks, "finding": self._of_ends[how]} for how, ranks in self.ends.items()],
        }


def _rows(seen: Dict[Any, Occurrences], names: Tuple[str, ...]) -> List[Dict[str, Any]]:
    return [{**dict(zip(names, key)), **found.data()} for key, found in seen.items()]


def _finding(row: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return the finding that a line tells, if it does."""
    told = clean.table(row.get("finding"))
    if not told:
        return None
    return {"ranks": clean.indices(told.get("ranks")) or [], **{name: clean.text(told.get(name)) for name in _PARTS}}


def _head(header: Dict[str, Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = {
        name: clean.text(header.get(name)) for name in ("ddpfix", "python", "torch", "command", "host")
    }
    found["started"] = clean.number(header.get("started"))
    found["toolkits"] = {name: clean.text(version) for name, version in clean.table(header.get("toolkits")).items()}
    settings = clean.table(header.get("settings")).items()
    found["settings"] = [
        {
            "name": name,
            "value": clean.text(clean.table(each).get("value")),
            "from": clean.text(clean.table(each).get("from")),
        }
        for name, each in settings
    ]
    return found


def has_exited(pid: Any, host: Any) -> bool:
    """Return whether a process has exited; False where it ran on another machine, and nobody here knows."""
    if type(pid) is not int or not 0 < pid < 2**31 or host != socket.gethostname() or os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
