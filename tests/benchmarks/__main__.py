"""Measures what ddpfix costs: ``python -m tests.benchmarks [--quick] [SECTION ...]``.

About four minutes; on a machine that others use, too. The numbers depend on the machine, so judge by the ratios and by
the targets. With --quick everything is run, hardly anything is measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

# Two ranks share the cores, and threads of one measurement would disturb another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.benchmarks.measure import Figure  # noqa: E402

# Where each section is measured: the module is imported when its turn has come, since some of them import torch.
SECTIONS: Dict[str, Tuple[str, str]] = {
    "off": ("starts:switched_off", "Interpreter start, DDPFIX unset"),
    "on": ("starts:switched_on", "Interpreter start, DDPFIX=1 and no toolkit"),
    "imports": ("starts:imports", "Imports, DDPFIX=1 and toolkits"),
    "plain": ("ranks:a_plain_step", "Plain DDP step in which every parameter is used"),
    "ranks": ("ranks:a_step", "DDP step on two ranks, stock with find_unused_parameters=True"),
}


def line(figure: Figure) -> str:
    """A figure with three digits that count, and no powers of ten; its target, and whether it meets it."""
    value, limit = figure.value, ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
    if figure.target is not None:
        limit = f"{'met' if value <= figure.target else 'MISSED'} (at most {figure.target:g} {figure.unit})"
    return f"  {figure.name:50} {value:10.{digits}f} {figure.unit:7} {limit:24} {figure.note}".rstrip()


def main(words: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--quick", action="store_true", help="run everything, measure hardly anything")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all without any")
    chosen = parser.parse_args(words)
    unknown = [name for name in chosen.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not a section: choose from {', '.join(SECTIONS)}")
    for name in [name for name in os.environ if name.startswith("DDPFIX")]:
        # Each measurement says for itself whether ddpfix is on.
        del os.environ[name]
    # Their ratios travel, the numbers themselves do not.
    print(f"Python {platform.python_version()}, torch {version('torch')}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="ddpfix-benchmarks-") as folder:
        for name in chosen.sections or SECTIONS:
            place, title = SECTIONS[name]
            module, _, function = place.partition(":")
            begun = time.monotonic()
            measure = getattr(import_module(f"tests.benchmarks.{module}"), function)
            figures: List[Figure] = measure(Path(folder), chosen.quick)
            print(f"{title} ({time.monotonic() - begun:.0f} s)", *map(line, figures), sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
