"""Everything that only a GPU can show: ``python -m tests.gpu [--out FOLDER] [--minutes 9] [--only NAME ...]``.

Needs no network, keeps to its time, and prints Markdown. What has run is kept in the folder, and the next call goes on
with the rest. Ends with 1 if a check failed, and with 3 if none did and cells were not run. On a machine without a GPU
it runs as far as it can, and names what it left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

from tests.gpu import launch, machine, report
from tests.gpu.catalogue import everything
from tests.gpu.cells import Cell, lacking, launches
from tests.gpu.launch import Kept, Outcome
from tests.gpu.sections import SECTIONS, torch_alone, verdict

FAILED, NOT_RUN = 1, 3
_ON_CPU = "The README's table of WavLM-large, and peak memory, need a CUDA device (a narrow stand-in has run instead)"
_NOT_KEPT = "no output folder (--out FOLDER, or $OUT): what is found is printed, and not kept"


def main(words: Sequence[str]) -> int:
    begun = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    folder, known = os.environ.get("OUT") or None, tuple(SECTIONS)
    parser.add_argument("--out", type=Path, default=folder, help="folder of gpu.md, table.md, results.json ($OUT)")
    parser.add_argument("--minutes", type=float, default=9.0, help="how long one call may take (9)")
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help=f"sections: {', '.join(known)}")
    parser.add_argument("--again", nargs="?", const="all", choices=("all", "failed"), help="run kept cells again")
    parser.add_argument("--quick", action="store_true", help="run a little of everything; its figures mean nothing")
    chosen = parser.parse_args(words)
    facts = machine.probe(launch.environment())
    if chosen.out is None:
        print(_NOT_KEPT, file=sys.stderr)
    else:
        chosen.out.mkdir(parents=True, exist_ok=True)
    kept = Kept(chosen.out / "results.json" if chosen.out else None, facts)
    cells = [each for each in everything(facts, chosen.quick) if each.section in (chosen.only or SECTIONS)]
    # The end of the last ranks takes some seconds, too.
    outcomes = _outcomes(cells, facts, kept, chosen.again, begun + chosen.minutes * 60 - 8)
    notes = [] if facts["cuda"] or not any(cell.section == "table" for cell in cells) else [_ON_CPU]
    text = report.markdown(facts, outcomes, time.monotonic() - begun, notes)
    print(text)
    if chosen.out:
        (chosen.out / "gpu.md").write_text(text + "\n", encoding="utf-8")
        (chosen.out / "table.md").write_text(report.for_costs(facts, outcomes) + "\n", encoding="utf-8")
    return FAILED if report.failed(outcomes) else NOT_RUN if report.not_run(outcomes) else 0


def _outcomes(cells: Sequence[Cell], facts: Dict[str, Any], kept: Kept, again: str, end: float) -> List[Outcome]:
    """What each cell has found, now or in an earlier call, or why it was not run; in the order of the cells."""
    reasons = {number: lacking(cell, facts) for number, cell in enumerate(cells)}
    found = {number: Outcome(cells[number], left_out=reason) for number, reason in reasons.items() if reason}
    earlier = [] if again == "all" else [each for each in map(kept.of, cells) if each is not None]
    for each in earlier:
        if again != "failed" or not verdict(each, earlier).startswith("FAILED"):
            found[cells.index(each.cell)] = each
    waiting = [cell for number, cell in enumerate(cells) if number not in found]
    # One launch after the other, the most important ones first, as far as there is time.
    for most, own in launches(waiting, facts["cuda"]):
        done = launch.run(own, facts["cuda"], min(most, end - time.monotonic()))
        for each in done:
            state = each.error or each.left_out or f"{each.seconds:.1f} s"
            print(f"{each.cell.section}: {each.cell.name}: {state}", file=sys.stderr)
            found[cells.index(each.cell)] = each
        kept.add(done)
    return torch_alone([found[number] for number in range(len(cells))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
