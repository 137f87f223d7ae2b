"""Print the table: ``python -m tests.harm [--kind saved] [PROGRAM ...] [--jobs 2] [--list] [--twice]``."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import List, Tuple

from tests.harm import compare, launch
from tests.harm.program import Program, chosen
from tests.support import ranks


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.harm", description=__doc__)
    parser.add_argument("programs", nargs="*", help="names, or parts of names")
    parser.add_argument("--kind", action="append", default=[], help="a file of tests/harm/kinds; more than once")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once, each of them plain and under ddpfix")
    parser.add_argument("--list", action="store_true", help="print names, run nothing")
    parser.add_argument("--quick", action="store_true", help="leave out those that wait for half a minute")
    parser.add_argument("--slow", action="store_true", help="only those that wait for half a minute")
    parser.add_argument("--twice", action="store_true", help="plain torch twice: what differs is no program for here")
    parser.add_argument("-v", action="store_true", dest="all", help="all differences, and what ranks wrote to stderr")
    return parser.parse_args()


def judged(program: Program, twice: bool = False) -> Tuple[List[str], launch.Pair]:
    """Run a program and compare; again where it took long, for a machine is busy at times, or gloo has ended it."""
    for _ in range(3):
        pair = launch.both(program, "plain" if twice else "ddpfix")
        found = compare.complaints(program, pair)
        if twice:
            found = [text for text in found if not text.startswith("does not say")]
        slow = any(": took " in text or f"code {launch.HANGS}" in text for text in found)
        if not (slow or any(ranks.ENDED_BY_GLOO in run.err for run in (*pair.plain, *pair.ddpfix))):
            break
    return found, pair


def main() -> int:
    args = arguments()
    some = [each for each in chosen(args.programs, args.kind) if each.available]
    some = [each for each in some if not (args.quick and each.slow) and (each.slow or not args.slow)]
    if args.list:
        print("\n".join(each.name for each in some))
        return 0
    begun, breached = time.monotonic(), 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for program, (found, pair) in zip(some, pool.map(lambda each: judged(each, args.twice), some)):
            breached += bool(found)
            print(f"{'BREACHED' if found else 'kept    '} {program.name:44} {found[0] if found else ''}", flush=True)
            if args.all:
                print("".join(f"         {text}\n" for text in found[1:]), end="")
                for rank, run in enumerate(pair.ddpfix):
                    print(
                        "".join(f"         {rank}| {line}\n" for line in run.err.splitlines()[-12:]), end="", flush=True
                    )
    launch.close()
    print(f"{len(some) - breached} kept, {breached} breached; {time.monotonic() - begun:.0f} s")
    return 1 if breached else 0


if __name__ == "__main__":
    sys.exit(main())
