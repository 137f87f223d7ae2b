"""Run random training loops: ``python -m tests.harm.loops --seeds 0:1000 [--ranks 2]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import List, Sequence

from tests.harm.loops import source
from tests.harm.loops.plan import draw
from tests.harm.loops.verdict import BREACH, VERDICTS, judged

# Programs between two looks at what was found.
PART = 50


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.harm.loops", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first:last, the last one left out; or some, with commas")
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3))
    parser.add_argument("--show", action="store_true", help="print the programs and run none")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed, and what ranks printed")
    return parser.parse_args()


def numbered(text: str) -> Sequence[int]:
    if ":" in text:
        first, last = text.split(":")
        return range(int(first), int(last))
    return [int(seed) for seed in text.split(",")]


def main() -> int:
    args = arguments()
    seeds, names = numbered(args.seeds), []
    if args.show:
        print("\n".join(source.text(draw(seed, args.ranks)) for seed in seeds))
        return 0
    for first in range(0, len(seeds), PART):
        with tempfile.TemporaryDirectory(prefix="ddpfix-harm-") as folder:
            found = judged([draw(seed, args.ranks) for seed in seeds[first : first + PART]], Path(folder))
        for plan, verdict, runs in found:
            names.append(verdict.name)
            if verdict.name == BREACH or args.verbose:
                print(f"seed {plan.seed}: {verdict.name}. {' '.join(verdict.text.split())[:600]}", flush=True)
                print("    " + "; ".join([f"pattern: {plan.pattern}", *plan.words()]), flush=True)
            logs = [(kind, rank, log) for kind, run in runs.items() for rank, log in enumerate(run.logs)]
            for kind, rank, log in logs if args.verbose else ():
                print(f"--- {kind}, rank {rank}\n{log[-3000:]}", flush=True)
    return counted(names)


def counted(names: List[str]) -> int:
    print("\n".join(f"{names.count(name):6} {name}" for name in VERDICTS))
    return 1 if BREACH in names else 0


if __name__ == "__main__":
    sys.exit(main())
