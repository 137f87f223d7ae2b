"""``python -m tests.upstream``: tests of torch and accelerate, stock and under ddpfix, and what differs."""

from __future__ import annotations

import argparse
import sys
import time
from types import ModuleType
from typing import Dict, Sequence

from tests.upstream import accelerate_suite, torch_suite
from tests.upstream.outcomes import EXPECTED, MODES, STOCK, compared, table, worse

SUITES: Dict[str, ModuleType] = {"torch": torch_suite, "accelerate": accelerate_suite}


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, action="append", help="default: all")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all; stock is always run")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="tests with this regular expression in their name"
    )
    parser.add_argument("--quick", action="store_true", help="the subset that CI runs")
    given = parser.parse_args(words)
    modes, found_worse = given.mode or list(MODES), False
    for name in given.suite or SUITES:
        suite, begun = SUITES[name], time.monotonic()
        known = suite.names(given.only)
        for test in EXPECTED:
            if suite is torch_suite and not given.only and test not in known:
                print(f"outcomes.py names a test that this release does not have: {test}")
        outcomes = compared(suite, [test for test in known if not given.quick or test in suite.QUICK], modes)
        print(table(outcomes, [STOCK, *(mode for mode in modes if mode != STOCK)]))
        print(f"{name}: {time.monotonic() - begun:.0f} s\n", flush=True)
        found_worse = found_worse or any(worse(outcomes, mode) for mode in modes)
    return int(found_worse)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
