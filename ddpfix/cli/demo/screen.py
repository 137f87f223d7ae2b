"""What the demo prints: progress while ranks run, and tables of the layers that each rank skipped."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddpfix.cli.demo.verdict import Step


class Screen:
    """A terminal, or a pipe, in which nothing moves and lines are not squeezed."""

    def __init__(self) -> None:
        self.moving = sys.stdout.isatty()
        self.console = Console(width=None if self.moving else 120, highlight=False)

    def say(self, text: str, style: str = "") -> None:
        # Text from ranks may hold square brackets, which rich would read as styles; long lines stay searchable.
        self.console.print(Text(text, style=style), soft_wrap=not self.moving)

    def heading(self, title: str) -> None:
        self.say("")
        self.say(title, "bold")

    @contextmanager
    def progress(self, name: str, steps: int) -> Iterator[Callable[[int], None]]:
        """Say in a terminal which step runs; nothing in a pipe."""
        with self.console.status(f"{name}: two ranks are starting") as status:
            yield lambda step: status.update(f"{name}: step {step} of {steps}") if step else None

    def skipped(self, layers: Sequence[str], steps: List[Step]) -> None:
        """One row a step, one column a rank: skipped layers by number, the others as dots."""
        table = Table()
        table.add_column("step", justify="right")
        ranks = range(len(steps[0].skipped)) if steps else range(0)
        for rank in ranks:
            table.add_column(f"rank {rank} skipped", no_wrap=True)
        table.add_column("")
        table.add_column("loss", justify="right")
        for step in steps:
            cells = [Text(strip(layers, part), style="" if step.agreed else "red") for part in step.skipped]
            mark = Text("same", style="green") if step.agreed else Text("DIFFERENT", style="bold red")
            table.add_row(str(step.number), *cells, mark, f"{step.loss:.3f}")
        self.console.print(table)


def strip(layers: Sequence[str], skipped: Optional[Tuple[str, ...]]) -> str:
    """Return the layers side by side: the number of one that was skipped, a dot for one that ran."""
    if skipped is None:
        return "(not reached)"
    return " ".join(layer if layer in skipped else "." for layer in layers)
