"""The Markdown: a header that names the machine, a table a section, and what was left out."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any, Dict, List, Sequence, Tuple

from tests.gpu.launch import Outcome
from tests.gpu.sections import SECTIONS, verdict


def failed(outcomes: Sequence[Outcome]) -> int:
    """How many cells failed a check or had an error."""
    return sum(verdict(each, outcomes).startswith("FAILED") for each in outcomes)


def not_run(outcomes: Sequence[Outcome]) -> Dict[str, int]:
    """How many cells were not run, by reason."""
    return Counter(each.left_out for each in outcomes if each.left_out)


def markdown(machine: Dict[str, Any], outcomes: Sequence[Outcome], seconds: float, notes: Sequence[str]) -> str:
    """The whole page."""
    lines = ["# ddpfix on this machine", "", *header(machine), ""]
    for section in SECTIONS:
        lines += of_section(section, outcomes)
    lines += ["## Left out", "", *left_out(outcomes, notes), ""]
    wrong, missing = failed(outcomes), not_run(outcomes)
    if wrong:
        lines.append(f"{wrong} checks failed.")
    if missing:
        reasons = " | ".join(f"{reason} {count}" for reason, count in sorted(missing.items()))
        lines.append(f"{sum(missing.values())} of {len(outcomes)} cells were not run ({reasons}).")
    if not wrong and not missing:
        lines.append("All checks passed.")
    lines.append(f"Took {seconds:.0f} s.")
    return "\n".join(lines)


def of_section(section: str, outcomes: Sequence[Outcome]) -> List[str]:
    """Its title, its note, and a row for each cell or mode; nothing where none of its cells was run."""
    own = [each for each in outcomes if each.cell.section == section and not each.left_out]
    if not own:
        return []
    rows: List[Dict[str, str]] = []
    for each in own:
        cell = each.cell
        start = {"group": where(cell.group), "model": ", ".join(part for part in (cell.model, cell.kind) if part)}
        if each.error:
            rows.append({**start, "mode": cell.mode, "check": f"FAILED: error: {each.error}"})
            continue
        for seen in SECTIONS[section].look(each, own):
            check = f"FAILED: {'; '.join(seen.wrong)}" if seen.wrong else "ok"
            rows.append({**start, "mode": seen.mode, **seen.row, "check": check})
    head = list(dict.fromkeys(name for row in rows for name in row if name != "check"))
    whole = [[row.get(name, "") for name in (*head, "check")] for row in rows]
    return [f"## {SECTIONS[section].title}", "", SECTIONS[section].note, "", *table([*head, "check"], whole), ""]


def header(machine: Dict[str, Any]) -> List[str]:
    memory = f", {machine['memory']} MB" if machine["memory"] else ""
    toolkits = ("transformers", "triton", "funasr")
    count = f"{machine['devices']} x " if machine["devices"] > 1 else ""
    rows = [
        ["device", f"{count}{machine['device']}{memory}" if machine["cuda"] else "no CUDA device"],
        ["driver, CUDA", f"{machine['driver'] or '-'}, {machine['cuda_version'] or '-'}"],
        ["NCCL", str(machine["nccl"] or "-")],
        ["torch, python", f"{machine['torch']}, {machine['python']}"],
        ["transformers, triton, FunASR", ", ".join(str(machine[name] or "-") for name in toolkits)],
        ["date", datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z")],
    ]
    return table(["machine", ""], rows)


def for_costs(machine: Dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The table of the largest model, to be pasted into docs/costs.md."""
    device = machine["device"] if machine["cuda"] else "no CUDA device: the figures mean nothing"
    about = "bf16 autocast, fused AdamW, 60 s of audio a step and rank"
    releases = f"torch {machine['torch']}, CUDA {machine['cuda_version'] or '-'}, NCCL {machine['nccl'] or '-'}"
    rows = of_section("table", outcomes)[4:-1] or ["The table has no row: its cells were not run."]
    return "\n".join([f"{about}; {device}; {releases}.", "", *rows])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def left_out(outcomes: Sequence[Outcome], notes: Sequence[str]) -> List[str]:
    """One line for a section, group and reason, with what was to be run."""
    reasons: Dict[Tuple[str, str, str], List[str]] = {}
    for each in outcomes:
        if each.left_out:
            place = (SECTIONS[each.cell.section].title, where(each.cell.group), each.left_out)
            reasons.setdefault(place, []).append(each.cell.name)
    lines = [f"- {title} ({group}): {reason}: {few(names)}" for (title, group, reason), names in reasons.items()]
    return [*lines, *(f"- {note}" for note in notes)] or ["- nothing"]


def few(names: Sequence[str], most: int = 6) -> str:
    more = f"; and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def where(group: str) -> str:
    return {"nccl1": "NCCL, 1 rank", "nccl2": "NCCL, 2 ranks", "gloo2": "gloo, 2 ranks"}[group]
