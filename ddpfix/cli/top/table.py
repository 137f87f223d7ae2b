"""The table of ``ddpfix top``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import List, Optional, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ddpfix.cli.top.ranks import ENDED, FAILED, KILLED, QUIET, Rank, groups, look
from ddpfix.cli.words import plain
from ddpfix.trace.tail import Tail

# More ranks than these are shown as groups, also on a high terminal.
MOST = 40
# Lines beside the ranks: borders, headings, and the lines around the table.
_AROUND = 8
_STYLES = {FAILED: "bold red", KILLED: "bold red", QUIET: "yellow", ENDED: "dim"}
_COLUMNS = ("rank", "step", "steps/s", "state", "where it is", "last row", "reads", "waits", "peak", "loss")


def render(folder: Path, tails: Sequence[Tail], height: int, now: Optional[float] = None) -> Group:
    """Return the whole screen.

    Args:
        folder: where the trace is.
        tails: by rank.
        height: lines of the terminal.
        now: unix seconds.
    """
    now = time.time() if now is None else now
    ranks = [look(tail, now) for tail in tails]
    room = max(4, height - _AROUND)
    grouped = len(ranks) > min(MOST, room)
    lines = groups(ranks, max(1, min(4, room // 6))) if grouped else ranks
    note = f"{len(ranks)} ranks in groups, with medians" if grouped else ""
    below = [*_events(tails), *([Text(note, style="dim")] if note else [])]
    return Group(_heading(folder, tails), _table(lines), *below)


def _heading(folder: Path, tails: Sequence[Tail]) -> Text:
    header = next((tail.header for tail in tails if tail.header), {})
    size = header.get("world_size")
    missing = f", {size - len(tails)} without a trace here" if isinstance(size, int) and size > len(tails) else ""
    return plain(f"{folder}: {len(tails)} of {size or '?'} ranks{missing}; {header.get('command', '')}", style="bold")


def _table(lines: Sequence[Rank]) -> Table:
    table = Table(expand=False)
    for name in _COLUMNS:
        right = name not in ("rank", "state", "where it is")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "where it is", overflow="fold")
    for line in lines:
        table.add_row(*map(plain, _cells(line)), style=_STYLES.get(line.state, ""))
    return table


def _cells(line: Rank) -> List[str]:
    return [
        line.name,
        "-" if line.step is None else str(line.step),
        "-" if line.speed is None else f"{line.speed:.3g}",
        line.state or "runs",
        line.place,
        "-" if line.age is None else f"{line.age:.0f} s",
        _percent(line.data),
        _percent(line.wait),
        "-" if line.memory is None else f"{line.memory / 2**30:.2f} GiB",
        "-" if line.loss is None else f"{line.loss:.4g}",
    ]


def _percent(share: Optional[float]) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _events(tails: Sequence[Tail]) -> List[Text]:
    """Return the last warning or error of any rank."""
    known = [(tail.event["time"], tail.rank, tail.event["text"]) for tail in tails if tail.event is not None]
    if not known:
        return []
    _, rank, text = max(known)
    return [plain(f"rank {rank}: {text}", "yellow")]
