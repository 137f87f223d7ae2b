"""Measures what ddpfix costs: ``python -m tests.benchmarks [--quick] [--json FILE] [SECTION ...]``.

About four minutes; on a machine that others use, too. The numbers depend on the machine, so judge by the ratios and by
the targets. With --quick everything is run, hardly anything is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

# Two ranks share the cores, and threads of one measurement would disturb another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console  # noqa: E402

from tests.benchmarks import report  # noqa: E402

# Where each section is measured: the module is imported when its turn has come, since some of them import torch.
SECTIONS: Dict[str, Tuple[str, str]] = {
    "off": ("starts:switched_off", "Interpreter start, DDPFIX unset"),
    "on": ("starts:switched_on", "Interpreter start, DDPFIX=1 and no toolkit"),
    "imports": ("starts:imports", "Imports, DDPFIX=1 and toolkits"),
    "layer": ("layers:a_layer", "Training forward, shared decisions above stock"),
    "plain": ("ranks:a_plain_step", "Plain DDP step in which every parameter is used"),
    "ranks": ("ranks:a_step", "DDP step on two ranks, stock with find_unused_parameters=True"),
    "wrapping": ("ranks:wrapping", "Wrapping a model on two ranks"),
}


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--quick", action="store_true", help="run everything, measure hardly anything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all without any")
    chosen = parser.parse_args(words)
    unknown = [name for name in chosen.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not a section: choose from {', '.join(SECTIONS)}")
    return chosen


def measured(name: str, folder: Path, quick: bool) -> report.Section:
    place, title = SECTIONS[name]
    module, _, function = place.partition(":")
    begun = time.monotonic()
    figures: List[report.Figure] = getattr(import_module(f"tests.benchmarks.{module}"), function)(folder, quick)
    return report.Section(title, figures, time.monotonic() - begun)


def main(words: Optional[Sequence[str]] = None) -> None:
    chosen = arguments(sys.argv[1:] if words is None else words)
    for name in [name for name in os.environ if name.startswith("DDPFIX")]:
        # Each measurement says for itself whether ddpfix is on.
        del os.environ[name]
    console = Console(width=None if sys.stdout.isatty() else 140)
    about = report.machine()
    report.show_machine(console, about)
    done: List[report.Section] = []
    with tempfile.TemporaryDirectory(prefix="ddpfix-benchmarks-") as folder:
        for name in chosen.sections or SECTIONS:
            done.append(measured(name, Path(folder), chosen.quick))
            report.show(console, done[-1])
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(report.as_data(done, about), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
