"""What the table says of one rank, and of groups of ranks where there are too many for a table."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ddpfix.trace.processes import has_exited
from ddpfix.trace.tail import Tail

# The last rows from which speed and shares are taken, in seconds.
WINDOW = 30.0
# Seconds without a row after which a rank is silent: at least, and in steps of its own.
SILENT, STEPS = 5.0, 5.0
ENDED, FAILED, KILLED, QUIET, RUNNING, STARTING = "ended", "failed", "killed", "silent", "", "starting"


@dataclass
class Rank:
    """One line of the table.

    Attributes:
        name: the rank's number, or a group and how many ranks are in it.
        step: its last step.
        speed: steps a second.
        state: one of the words above.
        place: where it is, in words.
        age: seconds since its last row.
        data: share of the time in which it reads.
        wait: share of the time in which it waits for other ranks.
        memory: bytes.
        loss: of the last step.
    """

    name: str
    step: Optional[int] = None
    speed: Optional[float] = None
    state: str = STARTING
    place: str = ""
    age: Optional[float] = None
    data: Optional[float] = None
    wait: Optional[float] = None
    memory: Optional[int] = None
    loss: Optional[float] = None


def look(tail: Tail, now: Optional[float] = None) -> Rank:
    """Return the present state of a rank, by its trace.

    Args:
        tail: of the rank.
        now: unix seconds.
    """
    now = time.time() if now is None else now
    found = Rank(str(tail.rank))
    row = tail.last
    if row is not None:
        recent = [each for each in tail.rows if row["time"] - each["time"] <= WINDOW]
        found.step, found.loss, found.memory = row["step"], row.get("loss"), row.get("peak")
        found.age = max(0.0, now - row["time"])
        found.speed = _speed(recent)
        found.data, found.wait = _share(recent, "data"), _share(recent, "wait")
    found.state = _state(tail, found, now)
    found.place = _place(tail, found, now)
    if found.state in (ENDED, FAILED, KILLED, QUIET):
        # What it was before is no speed of now.
        found.speed = None
    return found


def _speed(rows: Sequence[Any]) -> Optional[float]:
    seconds = rows[-1]["time"] - rows[0]["time"]
    if seconds > 0:
        return float((rows[-1]["step"] - rows[0]["step"]) / seconds)
    total = rows[-1].get("total")
    return 1 / total if total else None


def _share(rows: Sequence[Any], name: str) -> Optional[float]:
    known = [each for each in rows if each.get(name) is not None and each.get("total")]
    total = sum(each["total"] for each in known)
    return min(1.0, sum(each[name] for each in known) / total) if total else None


def _state(tail: Tail, found: Rank, now: float) -> str:
    if tail.end is not None:
        return ENDED if tail.end.get("how") == "ended" else FAILED
    if has_exited(tail.header.get("pid"), tail.header.get("host")):
        return KILLED
    since = found.age if found.age is not None else now - tail.header.get("started", now)
    own = STEPS / found.speed if found.speed else 0.0
    if since > max(SILENT, own):
        return QUIET
    return RUNNING if found.step is not None else STARTING


def _place(tail: Tail, found: Rank, now: float) -> str:
    if found.state == FAILED and tail.end is not None:
        return str(tail.end["how"])
    if tail.stall is not None and found.state in (QUIET, KILLED, RUNNING, STARTING):
        step = tail.stall["step"] + 1
        seconds = f" for {now - tail.stall['time'] + 2:.0f} s" if found.state != KILLED else ""
        return f"{tail.stall['phase']} of step {step}{seconds}"
    if found.state == RUNNING:
        return _mostly(tail)
    return f"no row for {found.age:.0f} s" if found.state == QUIET and found.age is not None else ""


def _mostly(tail: Tail) -> str:
    """Return the part of a step in which it was longest."""
    row = tail.last or {}
    parts = {name: row.get(name) for name in ("data", "forward", "backward", "optimizer")}
    known = {name: value for name, value in parts.items() if value is not None}
    if row.get("wait") is not None and "backward" in known:
        known["wait"] = row["wait"]
        known["backward"] -= row["wait"]
    return "mostly " + max(known, key=lambda name: known[name]) if known else ""


Test = Callable[[Rank], bool]
# Groups in the order of the table; a rank is in the first one that it fits.
_BY_STATE: Tuple[Tuple[str, Test], ...] = (
    ("failed", lambda each: each.state == FAILED),
    ("killed", lambda each: each.state == KILLED),
    ("silent", lambda each: each.state == QUIET),
    ("starting", lambda each: each.state == STARTING),
    ("ended", lambda each: each.state == ENDED),
)


def groups(ranks: Sequence[Rank], single: int = 4) -> List[Rank]:
    """Lines for many ranks: what is wrong, then all that run, and the ones at both ends of these.

    Args:
        ranks: all of them.
        single: how many of a group have a line of their own.
    """
    lines: List[Rank] = []
    rest = list(ranks)
    for name, fits in _BY_STATE:
        members = [each for each in rest if fits(each)]
        rest = [each for each in rest if not fits(each)]
        if members:
            lines.append(together(f"{len(members)} {name}", members))
            lines += members[:single] if name in ("failed", "killed", "silent") else []
    if rest:
        lines.append(together(f"{len(rest)} running", rest))
        lines += _ends(rest, single)
    return lines


def _ends(running: List[Rank], single: int) -> List[Rank]:
    """Return the ranks that keep the others waiting (they wait least), and those that wait most."""
    ordered = sorted(running, key=lambda each: each.wait if each.wait is not None else 1.0)
    if len(ordered) <= 2 * single:
        return ordered
    least = [_called(each, "waits least") for each in ordered[:single]]
    return [*least, *(_called(each, "waits most") for each in ordered[-single:])]


def _called(rank: Rank, what: str) -> Rank:
    return Rank(**{**vars(rank), "place": f"{what}; {rank.place}".rstrip("; ")})


def together(name: str, members: Sequence[Rank]) -> Rank:
    """Return one line for a group: the median of each column, and the range of steps."""
    steps = [each.step for each in members if each.step is not None]
    span = "" if not steps or min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}"
    found = Rank(name, state=members[0].state, place=span)
    found.step = min(steps) if steps else None
    for column in ("speed", "age", "data", "wait", "loss"):
        values = [getattr(each, column) for each in members if getattr(each, column) is not None]
        setattr(found, column, median(values) if values else None)
    memory = [each.memory for each in members if each.memory is not None]
    found.memory = max(memory) if memory else None
    return found
