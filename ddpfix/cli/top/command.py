"""The command: prints the table once, or keeps it up to date until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List

from ddpfix import _env
from ddpfix._env import printable

if TYPE_CHECKING:
    from rich.console import Console

    from ddpfix.trace.tail import Tail


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``top`` to the commands of ddpfix."""
    top = commands.add_parser(
        "top",
        help="a live table of the ranks whose trace is in a folder",
        description="What each rank of a job does, by the trace that it leaves with DDPFIX_TRACE=DIR.",
    )
    top.add_argument("folder", type=Path, metavar="DIR", help="the folder that DDPFIX_TRACE names")
    top.add_argument("--once", action="store_true", help="print the table and leave")
    top.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks [1]")
    top.set_defaults(action=_top)


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of seconds from 0.1 to 3600")
    return value


def _top(options: argparse.Namespace) -> int:
    from ddpfix.trace.reader import TraceError

    try:
        return _show(options.folder, options.once, options.interval)
    except TraceError as error:
        _env.say(str(error))
        return 2


class Folder:
    """The traces in a folder; ranks may join while it is shown.

    Args:
        path: where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tails: Dict[int, Tail] = {}

    def read(self) -> List[Tail]:
        """Take what is new; the ranks in their order."""
        from ddpfix.trace import reader
        from ddpfix.trace.tail import Tail

        for rank, attempt, file in reader.files(self.path):
            if attempt is None and rank not in self._tails:
                self._tails[rank] = Tail(rank, file)
        for tail in self._tails.values():
            tail.read()
        return [self._tails[rank] for rank in sorted(self._tails)]


def _wait(console: Console, path: Path, interval: float) -> None:
    """Wait until a job has left the first line of a trace in the folder, or has made it; Ctrl-C ends that."""
    if path.exists() and (not path.is_dir() or any(path.glob("rank-*"))):
        return
    with console.status(f"no trace yet in {printable(str(path))}: waiting for a job with DDPFIX_TRACE={path}"):
        while not any(path.glob("rank-*")):
            time.sleep(interval)


def _show(path: Path, once: bool, interval: float) -> int:
    from rich.console import Console

    from ddpfix.cli.top import table

    terminal = sys.stdout.isatty()
    # A pipe has no width; a table squeezed to 80 columns cannot be searched.
    console = Console(width=None if terminal else 140)
    if terminal and not once:
        _wait(console, path, interval)
    folder = Folder(path)
    tails = folder.read()
    if once or not terminal:
        console.print(table.render(path, tails, height=console.height if terminal else 10**6))
        return 0
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(table.render(path, tails, console.height), refresh=True)
            time.sleep(interval)
            tails = folder.read()
    return 0
