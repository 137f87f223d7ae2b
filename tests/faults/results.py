"""The results of runs as a file, and the table that is made of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Dict, List, Sequence

from tests.faults.judge import ENDED, HUNG, SURVIVED, Outcome
from tests.faults.plan import KINDS

FILE = Path(__file__).with_name("results.json")


def read(file: Path = FILE) -> List[Outcome]:
    """The outcomes that a file has."""
    return [Outcome(**each) for each in json.loads(file.read_text(encoding="utf-8"))["runs"]]


def write(file: Path, outcomes: Sequence[Outcome]) -> None:
    """Write them, a line each, in the order of their seeds."""
    lines = ",\n".join("  " + json.dumps(each._asdict()) for each in sorted(outcomes, key=lambda each: each.seed))
    file.write_text(f'{{"runs": [\n{lines}\n]}}\n', encoding="utf-8")


def table(outcomes: Sequence[Outcome]) -> str:
    """One line a kind of fault."""
    lines = [
        "| fault | runs | survived | ended with the cause | hung | against the rules | what the user reads |",
        "|---|---|---|---|---|---|---|",
    ]
    by_kind: Dict[str, List[Outcome]] = {kind: [each for each in outcomes if each.kind == kind] for kind in KINDS}
    by_kind["all"] = list(outcomes)
    for kind, own in by_kind.items():
        ends = Counter(each.end for each in own)
        told = Counter(words for each in own for words in each.told)
        words = ", ".join(f"{name} ({count})" for name, count in told.most_common()) if kind != "all" else ""
        bad = sum(bool(each.faults) for each in own)
        numbers = f"{len(own)} | {ends[SURVIVED]} | {ends[ENDED]} | {ends[HUNG]} | {bad}"
        lines.append(f"| {kind} | {numbers} | {words} |")
    return "\n".join(lines)
