"""How everything here is measured: the things to compare take turns, and what counts is the CPU time they used.

Other jobs may share the machine. Their load changes from one second to the next, so nothing is measured first and
compared later: one turn of each follows the other, in an order that flips, and the result is the middle of what the
turns say, or the least where more work cannot make a turn faster.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from statistics import median, quantiles
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

Turns = Dict[str, List[float]]


class Figure(NamedTuple):
    """One measured number. ``target`` is the most that it may be; None where it only explains another one."""

    name: str
    value: float
    unit: str
    target: Optional[float] = None
    note: str = ""


def take_turns(runs: Mapping[str, Callable[[], float]], times: int) -> Turns:
    """What each run says, ``times`` times; every second round goes backwards, so that nobody always comes first."""
    found: Turns = {name: [] for name in runs}
    for turn in range(times):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            found[name].append(runs[name]())
    return found


def extra(turns: Turns, of: str, above: str) -> List[float]:
    """What ``of`` needed more than ``above``, turn by turn."""
    return [more - less for more, less in zip(turns[of], turns[above])]


def middle_half(values: Sequence[float], digits: int = 1) -> str:
    """The range that holds the middle half of the values: how far they can be trusted."""
    if len(values) < 2:
        return "one turn"
    low, _, high = quantiles(values, n=4, method="inclusive")
    return f"middle half of {len(values)} turns: {low:.{digits}f} to {high:.{digits}f}"


def ratio(turns: Turns, of: str, to: str) -> float:
    """The middle of the ratios of turns that followed each other."""
    return median(one / other for one, other in zip(turns[of], turns[to]))


def process_ms(command: Sequence[object], env: Mapping[str, str], cwd: Path) -> float:
    """Milliseconds of CPU, of the program and of the system for it, that a whole process needs."""
    child = subprocess.Popen([str(word) for word in command], env=dict(env), cwd=cwd)
    _, status, used = os.wait4(child.pid, 0)
    # Popen would wait for a process that is gone already.
    child.returncode = status
    if status != 0:
        raise RuntimeError(f"{command} ended with status {status}")
    return (used.ru_utime + used.ru_stime) * 1000
