"""The Markdown: a header that names the machine, a table a section, and what was left out."""

from __future__ import annotations

import datetime
from typing import Any, Callable, Dict, List, Sequence, Tuple

from tests.gpu import judge
from tests.gpu.cells import SECTIONS
from tests.gpu.launch import Outcome

Rows = List[List[str]]
TITLES = {
    "exactness": "Exactness",
    "speed": "Step time and memory",
    "syncs": "Host-device synchronisations a step",
    "precision": "Mixed precision",
    "compile": "torch.compile",
    "fsdp": "LayerDrop under FSDP",
    "funasr": "FunASR",
}
NOTES = {
    "exactness": "*Gradient*: the largest relative difference from the mean of the ranks' gradients without DDP (limit "
    f"{judge.EXACT:g}). *As torch's flag*: after how many steps the parameters are bit for bit those of "
    "torch's own DDP with `find_unused_parameters=True`, without ddpfix, that leaves out the same layers. "
    "*Unsent*: the share of bytes.",
    "speed": "Random weights, AdamW, dropout as in the configuration, TF32 allowed; the median of turns (the "
    "smallest to the largest), ratios to the first mode in the same turns. Memory is the peak of one rank "
    "from before the model was built; *stays*: what is still allocated when the model is gone.",
    "syncs": "*Waits*: calls of CUDA in which the host waits, *copies*: to memory that is not pinned, *items*: "
    "numbers that Python asks of a tensor, on the CPU too (LayerDrop's own draws are some), all seen by "
    "the profiler; *warned*: by `torch.cuda.set_sync_debug_mode`. Without the flag, ddpfix may add no "
    "wait, copy or warning to those of plain DDP with the same model at rate 0.",
    "precision": "Columns as above; gradients are compared with those of the same autocast without DDP (limit "
    f"{judge.HALF:g}). In the step with an inf the optimizer has to be left out on every rank, and the "
    "scale halved.",
    "compile": "`torch.compile(DistributedDataParallel(model))`, 8 steps; *gradient* against the eager model "
    f"without DDP (limit {judge.COMPILED:g}). Without ddpfix nobody knows which layers ran, so there is "
    "none.",
    "fsdp": f"*Apart*: the largest difference of a parameter from the model without FSDP (limit {judge.SHARDED:g}).",
    "funasr": "Trainers of the installed release with a model of one parameter, on the card.",
}


def markdown(machine: Dict[str, Any], outcomes: Sequence[Outcome], seconds: float, notes: Sequence[str]) -> str:
    lines = ["# ddpfix on this machine", "", *header(machine), ""]
    for section in SECTIONS:
        own = [each for each in outcomes if each.cell.section == section and not each.left_out]
        if own:
            lines += [f"## {TITLES[section]}", "", *([NOTES[section], ""] if NOTES[section] else [])]
            lines += [*table(*TABLES[section](own)), ""]
    lines += ["## Left out", "", *left_out(outcomes, notes), ""]
    wrong = judge.failed(outcomes)
    lines += [f"{wrong} checks failed." if wrong else "All checks passed.", f"Took {seconds:.0f} s."]
    return "\n".join(lines)


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


def table(head: Sequence[str], rows: Rows) -> List[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def left_out(outcomes: Sequence[Outcome], notes: Sequence[str]) -> List[str]:
    """One line for a section, group and reason, with what was to be run."""
    reasons: Dict[Tuple[str, str, str], List[str]] = {}
    for each in outcomes:
        if each.left_out:
            where = (TITLES[each.cell.section], _where(each.cell.group), each.left_out)
            reasons.setdefault(where, []).append(each.cell.name)
    lines = [f"- {title} ({where}): {reason}: {few(names)}" for (title, where, reason), names in reasons.items()]
    return [*lines, *(f"- {note}" for note in notes)] or ["- nothing"]


def few(names: Sequence[str], most: int = 6) -> str:
    more = f"; and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def _where(group: str) -> str:
    return {"nccl1": "NCCL, 1 rank", "nccl2": "NCCL, 2 ranks", "gloo2": "gloo, 2 ranks"}[group]


def _rows(own: Sequence[Outcome], width: int, row: Callable[[Outcome], List[str]]) -> Rows:
    """A row an outcome; one with an error has that in place of figures. The check comes last."""
    found = []
    for each in own:
        cell = each.cell
        start = [_where(cell.group), ", ".join(part for part in (cell.model, cell.kind) if part), cell.mode]
        middle = [f"error: {each.error}", *[""] * (width - 1)] if each.error else row(each)
        found.append([*start, *middle, judge.verdict(each, own)])
    return found


_START = ["group", "model", "mode"]


def _exact(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    def row(each: Outcome) -> List[str]:
        first = each.found[0]
        alike = all(one["ran"] == first["ran"] for one in each.found)
        worst = max(one["gradient"] for one in each.found)
        saved = f"{first['traffic'][1] / sum(first['traffic']):.0%}" if first["traffic"] else "-"
        ranks = "yes" if all(one["steps"] == first["steps"] for one in each.found) else "no"
        # The branch of one model is chosen by each rank's own batch.
        layers = "by batch" if each.cell.model == "branches" else "yes" if alike else "no"
        same = f"{min(one['same'] for one in each.found)} of {len(first['steps'])}"
        return ["yes" if first["flag"] else "no", ranks, layers, f"{worst:.1e}", same, saved]

    head = [*_START, "flag", "ranks equal", "layers alike", "gradient", "as torch's flag", "unsent", "check"]
    return head, _rows(own, 6, row)


def _speed(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    rows: Rows = []
    for each in own:
        start = [_where(each.cell.group), f"{each.cell.model}, {each.cell.kind}"]
        if each.error:
            rows.append([*start, "", f"error: {each.error}", *[""] * 5, "FAILED"])
            continue
        for mode in each.cell.options["modes"]:
            error = each.found[0]["modes"][mode]["error"]
            figures = [f"error: {error}", *[""] * 5, "FAILED"] if error else judge.figures(each, mode)
            rows.append([*start, mode, *figures])
    head = [*_START, "ms a step", "ratio", "peak allocated, MB", "peak reserved, MB", "stays, MB", "layers", "turns"]
    return head, rows


def _syncs(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    def row(each: Outcome) -> List[str]:
        found = each.found[0]
        counts = found["counts"]
        named = {"copies", "waits", "items", "launches"}
        which = ", ".join(f"{name} {count:g}" for name, count in sorted(counts.items()) if name not in named)
        numbers = [f"{counts[name]:g}" for name in ("waits", "copies", "items")]
        return ["yes" if found["flag"] else "no", *numbers, f"{found['warned']:g}", which or "-"]

    return [*_START, "flag", "waits", "copies", "items", "warned", "which waits", "check"], _rows(own, 6, row)


def _compile(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    def row(each: Outcome) -> List[str]:
        first = each.found[0]
        gradient = "-" if first["gradient"] is None else f"{max(one['gradient'] for one in each.found):.1e}"
        times = [f"{first['compiling']:.1f}", f"{first['step']:.1f}"]
        return [*times, str(first["graphs"]), str(first["breaks"]), str(first["frames"]), gradient]

    head = ["compiling, s", "ms a step", "graphs", "graph breaks", "frames", "gradient", "check"]
    return [*_START, *head], _rows(own, 6, row)


def _fsdp(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    def row(each: Outcome) -> List[str]:
        first = each.found[0]
        ran = "/".join(str(len(names)) for names in first["ran"])
        alike = "yes" if all(one["ran"] == first["ran"] for one in each.found) else "no"
        sent = ["/".join(map(str, first[name])) for name in ("gathers", "reduces")]
        return [ran, alike, *sent, f"{max(one['apart'] for one in each.found):.1e}"]

    head = [*_START, "layers a step", "alike", "gathers a step", "reductions a step", "apart", "check"]
    return head, _rows(own, 5, row)


def _funasr(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    head = ["group", "fix", "trainer", "found", "check"]
    return head, _rows(own, 1, lambda each: [each.found[0]["said"]])


TABLES: Dict[str, Callable[[Sequence[Outcome]], Tuple[List[str], Rows]]] = {
    "exactness": _exact,
    "speed": _speed,
    "syncs": _syncs,
    "precision": _exact,
    "compile": _compile,
    "fsdp": _fsdp,
    "funasr": _funasr,
}
