"""Run random training loops: ``python -m tests.harm.loops --seeds 0:1000 [--ranks 2] [--jobs 2]``."""

from __future__ import annotations

import argparse
import collections
import sys
import threading
import time
from typing import Counter, Dict, Sequence

from tests.harm.loops import pool, source
from tests.harm.loops.plan import Plan, draw
from tests.harm.loops.shrink import shrunk
from tests.harm.loops.verdict import BREACH, VERDICTS, Verdict, judged


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.harm.loops", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first:last, the last one left out; or some, with commas")
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3))
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")
    parser.add_argument("--show", action="store_true", help="print the programs and run none")
    parser.add_argument("--shrink", action="store_true", help="print a simpler program for each breach")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed, and what ranks printed")
    return parser.parse_args()


def numbered(text: str) -> Sequence[int]:
    if ":" in text:
        first, last = text.split(":")
        return range(int(first), int(last))
    return [int(seed) for seed in text.split(",")]


def main() -> int:
    args = arguments()
    seeds = numbered(args.seeds)
    if args.show:
        print("\n".join(source.text(draw(seed, args.ranks)) for seed in seeds))
        return 0
    begun, lock = time.monotonic(), threading.Lock()
    count: Counter[str] = collections.Counter()

    def use(lane: pool.Lane, plan: Plan) -> None:
        runs, verdict = judged(lane, plan)
        with lock:
            count[verdict.name] += 1
            if verdict.name == BREACH or args.verbose:
                show(plan, verdict, runs, args.verbose)
        if verdict.name == BREACH and args.shrink:
            print(source.text(shrunk(plan, lambda other: alike(judged(lane, other)[1], verdict))), flush=True)

    pool.each(seeds, args.ranks, args.jobs, use)
    seconds = time.monotonic() - begun
    print(f"{sum(count.values())} programs on {args.ranks} ranks in {seconds:.0f} s")
    print("\n".join(f"{count[name]:6} {name}" for name in VERDICTS))
    return 1 if count[BREACH] else 0


def alike(one: Verdict, other: Verdict) -> bool:
    """Whether two breaches are of one kind."""
    return one.name == other.name and one.text[:12] == other.text[:12]


def show(plan: Plan, verdict: Verdict, runs: Dict[str, pool.Run], verbose: bool) -> None:
    print(f"seed {plan.seed}: {verdict.name}. {' '.join(verdict.text.split())[:600]}", flush=True)
    print("    " + "; ".join([f"pattern: {plan.pattern}", *plan.words()]), flush=True)
    if verbose:
        for kind, run in runs.items():
            for rank, log in enumerate(run.logs):
                print(f"--- {kind}, rank {rank}\n{log[-3000:]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
