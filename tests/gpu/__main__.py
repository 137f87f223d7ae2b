"""Everything that only a GPU can show: ``python -m tests.gpu [--out FILE] [--seconds 480] [--only NAME ...]``.

Needs no network, keeps to its time, prints Markdown, and ends with 1 if a check failed. On a machine without a GPU it
runs as far as it can, and names what it left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from tests.gpu import judge, launch, machine, report
from tests.gpu.cells import SECTIONS, Cell, everything, lacking, launches
from tests.gpu.launch import Outcome

_ON_CPU = (
    "Step time and memory: shapes of WavLM-base and BART-base, and peak memory, need a CUDA device (narrow stand-ins on"
    " the CPU have run instead)"
)


def main(words: Sequence[str]) -> int:
    chosen = _parsed(words)
    begun = time.monotonic()
    facts = machine.probe(launch.environment())
    cells = [each for each in everything(facts, chosen.quick) if each.section in (chosen.only or SECTIONS)]
    outcomes = [Outcome(cell, left_out=lacking(cell, facts)) for cell in cells if lacking(cell, facts)]
    possible = [cell for cell in cells if not lacking(cell, facts)]
    # The end of the last ranks takes some seconds, too.
    outcomes += _run(possible, facts, begun + chosen.seconds - 8)
    outcomes = torch_alone(outcomes)
    notes = [] if facts["cuda"] or not any(cell.section == "speed" for cell in cells) else [_ON_CPU]
    text = report.markdown(facts, outcomes, time.monotonic() - begun, notes)
    print(text)
    if chosen.out:
        chosen.out.write_text(text + "\n", encoding="utf-8")
    return 1 if judge.failed(outcomes) else 0


def _parsed(words: Sequence[str]) -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    parser.add_argument("--seconds", type=float, default=480.0, help="how long it may take (480)")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="NAME", help=f"sections: {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="run a little of everything; its figures mean nothing")
    return parser.parse_args(words)


def _run(cells: List[Cell], facts: Dict[str, Any], end: float) -> List[Outcome]:
    """One launch after the other; what one leaves of its time is for those that follow."""
    plan: List[Tuple[float, List[Cell]]] = launches(cells, facts["cuda"])
    outcomes: List[Outcome] = []
    for number, (share, own) in enumerate(plan):
        rest = sum(each for each, _ in plan[number:])
        done = launch.run(own, facts["cuda"], (end - time.monotonic()) * share / rest)
        for each in done:
            state = each.error or each.left_out or f"{each.seconds:.1f} s"
            print(f"{each.cell.section}: {each.cell.name}: {state}", file=sys.stderr)
        outcomes += done
    return outcomes


def torch_alone(outcomes: List[Outcome]) -> List[Outcome]:
    """What torch cannot do here without ddpfix either is left out, and no failure of ours."""
    found = []
    for each in outcomes:
        base = [one for one in outcomes if one.cell == replace(each.cell, mode="plain")]
        if each.cell.section == "fsdp" and base and base[0].error:
            each = Outcome(each.cell, left_out=f"torch alone cannot do it here ({base[0].error})")
        found.append(each)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
