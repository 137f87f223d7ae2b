"""Faults that strike real ranks: ``python -m tests.faults [--runs 300] [--seed 0] [--only KIND] [--resume FILE]``.

docs/dev/faults.md says what is run, and by which rules it is judged. Ends with 1 if a run is against them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, List, Sequence

from tests.faults import launch, results
from tests.faults.judge import Outcome
from tests.faults.plan import KINDS, Plan, draw


def main(words: Sequence[str]) -> int:
    chosen = _parsed(words)
    known = results.read(chosen.resume) if chosen.resume and chosen.resume.exists() else []
    done = {each.seed for each in known}
    launch.preload()
    place = Path(tempfile.mkdtemp(prefix="ddpfix-faults-"))
    plans: List[Plan] = [draw(seed) for seed in range(chosen.seed, chosen.seed + chosen.runs) if seed not in done]
    plans = [each for each in plans if not chosen.only or each.kind == chosen.only]
    if not launch.can_mount():
        plans = [each for each in plans if not each.kind.startswith("full disk")]
        print("no small disk can be mounted here: its kinds are left out", file=sys.stderr)
    bad = 0
    for found in launch.outcomes(plans, place, chosen.jobs):
        known.append(found)
        bad += bool(found.faults)
        print(_line(found), flush=True)
        if chosen.resume:
            results.write(chosen.resume, known)
    print(results.table(known))
    if bad:
        print(f"{bad} runs against the rules; what they left is in {place}", file=sys.stderr)
    return 1 if bad else 0


def _line(found: Outcome) -> str:
    """One run in words."""
    what = f"{found.seed} {found.kind} ({found.how}), {found.program}, {found.size} ranks"
    came = f"{found.end} in {found.seconds} s"
    beside = [] if found.plain is None else [f"without ddpfix: {found.plain}"]
    against = [f"AGAINST THE RULES: {', '.join(found.faults)}"] if found.faults else []
    return "; ".join(
        [f"{what}: {came}", *beside, *([f"told by {', '.join(found.told)}"] if found.told else []), *against]
    )


def _parsed(words: Sequence[str]) -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="how many (300)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (0)")
    parser.add_argument("--only", choices=list(KINDS), metavar="KIND", help=f"one of: {', '.join(KINDS)}")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="results: those that it has are not run again")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
