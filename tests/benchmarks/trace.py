"""What a trace costs: ``python -m tests.benchmarks.trace [--quick]``; ratios of turns that follow each other.

On two ranks over gloo: the demo's model, and a model whose step is little more than DDP's own work, which shows the
microseconds. The second figure of each is the CPU of the whole process, the writing thread included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Sequence

from tests.benchmarks.measure import middle_half
from tests.support import ranks

CHILD = Path(__file__).with_name("trace_child.py")


def plans(quick: bool) -> List[Dict[str, Any]]:
    if quick:
        return [{"model": name, "warm": 2, "turns": 2, "steps": 1} for name in ("demo", "small")]
    return [
        {"model": "demo", "warm": 5, "turns": 30, "steps": 4},
        {"model": "small", "warm": 20, "turns": 60, "steps": 100},
    ]


def run(plan: Dict[str, Any]) -> Dict[str, List[List[float]]]:
    """The seconds of each turn, on the wall and of CPU, with the trace on and off."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*ranks.elastic(2), str(CHILD), folder, json.dumps(plan)]
        code, output = ranks.run(words, ranks.environment(), Path(folder), 900)
        assert code == 0, output
        found: Dict[str, List[List[float]]] = json.loads(Path(folder, "turns.json").read_text())
    return found


def table(quick: bool) -> str:
    lines = ["| model | a step without | wall, on / off | CPU, on / off | CPU more a step |", "|---|---|---|---|---|"]
    for plan in plans(quick):
        turns = run(plan)
        pairs = list(zip(turns["on"], turns["off"]))
        cells = [plan["model"], f"{1000 * median(off[0] for _, off in pairs) / plan['steps']:.2f} ms"]
        for kind in (0, 1):
            ratios = [on[kind] / off[kind] for on, off in pairs]
            cells.append(f"{median(ratios):.3f} ({middle_half(ratios, 3)})")
        more = [1e6 * (on[1] - off[1]) / plan["steps"] for on, off in pairs]
        lines.append("| " + " | ".join([*cells, f"{median(more):.0f} µs"]) + " |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.trace")
    parser.add_argument("--quick", action="store_true", help="run everything, measure hardly anything")
    print(table(parser.parse_args(words).quick))


if __name__ == "__main__":
    main(sys.argv[1:])
