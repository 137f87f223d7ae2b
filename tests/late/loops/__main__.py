"""Print the table: ``python -m tests.late.loops [--only gan,sac] [--modes plain,auto,late] [--ranks 2,3] [--bad]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Sequence

from tests.late.loops import kinds, launch
from tests.late.loops.loop import MODES, SETTINGS
from tests.late.loops.verdict import as_declared, broken, verdict

# Programs that are run before their rows are printed.
BATCH = 12


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.late.loops", description=__doc__)
    parser.add_argument("--only", default="", help="programs or themes, with commas between them")
    parser.add_argument("--modes", default="plain,auto,late", help="of plain, auto, late; the reference always runs")
    parser.add_argument("--ranks", default="2", help="2, 3 or 2,3")
    parser.add_argument("--folder", default="", help="where logs and records are kept")
    parser.add_argument("--bad", action="store_true", help="only the rows that are not as they should be")
    return parser.parse_args()


def main() -> int:
    args, known = arguments(), kinds.load()
    wanted = [word for word in args.only.split(",") if word]
    names = [name for name, each in known.items() if not wanted or {name, each.theme} & set(wanted)]
    modes = [mode for mode in MODES if mode in ["hand", *args.modes.split(",")]]
    begun, count = time.monotonic(), 0
    folder = Path(args.folder or tempfile.mkdtemp(prefix="ddpfix-loops-"))
    for size in (int(each) for each in args.ranks.split(",")):
        for some in (names[first : first + BATCH] for first in range(0, len(names), BATCH)):
            runs = launch.train(launch.scenarios(some, modes, [size]), folder)
            count += sum(row(known[name], size, modes, runs, args) for name in some if f"{name}-hand-{size}" in runs)
    print(f"{count} rows are not as they should be; {time.monotonic() - begun:.0f} s; logs: {folder}")
    return 1 if count else 0


Runs = Dict[str, launch.Ranks]


def row(kind: kinds.Kind, size: int, modes: Sequence[str], runs: Runs, args: argparse.Namespace) -> int:
    """Print one program's outcomes; 1 if one of them is not as it should be."""
    of = {mode: runs[f"{kind.name}-{mode}-{size}"] for mode in modes}
    ends = {mode: verdict(of[mode], of["hand"], kind.closeness(size)) for mode in modes}
    complaints: List[str] = []
    if ends["hand"].outcome not in ("right", "unavailable"):
        complaints.append(f"hand: {ends['hand'].outcome}; {ends['hand'].text}")
    if "plain" in modes:
        complaints.append(as_declared(kind, ends["plain"], of["plain"]))
        for mode in SETTINGS:
            if mode in modes:
                why = broken(kind, of, mode, size)
                complaints.append(f"{mode}: {why}" if why else "")
    complaints = [text for text in complaints if text]
    if complaints or not args.bad:
        words = "  ".join(f"{mode} {end.outcome:11}" for mode, end in ends.items() if mode != "hand")
        print(f"{'!' if complaints else ' '} {kind.name:34} {size}  {words}", flush=True)
        for text in complaints:
            print("      " + text.replace("\n", " ")[:230], flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
