"""The Markdown: a header that names the machine, a table a section, and what was left out."""

from __future__ import annotations

import datetime
from typing import Any, Callable, Dict, List, Sequence, Tuple

from tests.gpu import judge
from tests.gpu.cells import SECTIONS
from tests.gpu.launch import Outcome

Rows = List[List[str]]
TITLES = {
    "loops": "Loops",
    "table": "WavLM-large",
    "hangs": "Waits that the hang watch sees",
    "trace": "Trace",
    "streams": "Streams",
    "starts": "Starts and ends of process groups",
    "memory": "Memory of a comparison of replicas",
    "graphs": "CUDA graphs",
    "exactness": "Exactness",
    "speed": "Step time and memory",
    "syncs": "Host-device synchronisations a step",
    "precision": "Mixed precision",
    "compile": "torch.compile",
    "fsdp": "LayerDrop under FSDP",
    "funasr": "FunASR",
}
NOTES = {
    "loops": "Trained in plain torch and under ddpfix: the parameters have to be the same bit for bit after each step, "
    "and the host may wait no more often. *Two checkpoints* is an error in plain torch, which is averaged by hand.",
    "table": "For docs/costs.md: see table.md in the output folder. Figures of each turn are here.",
    "hangs": "The card sleeps for six seconds; after four of them ddpfix has to take the thread for one that waits.",
    "trace": "Loss, norm and peak as read by hand, no question to the card from a thread of ddpfix, and one context.",
    "streams": "Bit for bit as torch with its flag.",
    "starts": "A process of its own for each rank, in plain torch and under ddpfix: same parameters, the limit of the "
    "backend, and on a card an end that comes at most 0.2 s later.",
    "memory": "Three steps of one embedding; two of them are compared between ranks.",
    "graphs": "Bit for bit as in plain torch.",
    "exactness": "*Gradient*: the largest relative difference from the mean of the ranks' gradients without DDP (limit "
    f"{judge.EXACT:g}). *As torch's flag*: after how many steps the parameters are bit for bit those of "
    "torch's own DDP with `find_unused_parameters=True`, without ddpfix, that leaves out the same layers.",
    "speed": "Random weights, AdamW, dropout as in the configuration, TF32 allowed; the median of turns (the "
    "smallest to the largest), ratios to the first mode in the same turns. Memory is the peak of one rank "
    "from before the model was built; *stays*: what is still allocated when the model is gone.",
    "syncs": "*Waits*: calls of CUDA in which the host waits, *copies*: to memory that is not pinned, *items*: "
    "numbers that Python asks of a tensor, on the CPU too (LayerDrop's own draws are some), all seen by "
    "the profiler; *warned*: by `torch.cuda.set_sync_debug_mode`. Without the flag, ddpfix may add no "
    "wait, copy or warning to those of plain DDP with the same model at rate 0; waits of gloo's own collectives are "
    "left aside. *Look*: waits and copies of the two steps in which replicas are compared, against two such steps in "
    f"plain torch at most {judge.LOOK} more of each.",
    "precision": "Columns as above; gradients are compared with those of the same autocast without DDP (limit "
    f"{judge.HALF:g}). In the step with an inf the optimizer has to be left out on every rank, and the "
    "scale halved.",
    "compile": "`torch.compile(DistributedDataParallel(model))`, 8 steps; *gradient* against the eager model "
    f"without DDP (limit {judge.COMPILED:g}). Without ddpfix nobody knows which layers ran, so there is "
    "none.",
    "fsdp": f"*Apart*: the largest difference of a parameter from the model without FSDP (limit {judge.SHARDED:g}).",
    "funasr": "Trainers of the installed release with a model of one parameter, on the card.",
}


def markdown(
    machine: Dict[str, Any], outcomes: Sequence[Outcome], seconds: float, notes: Sequence[str], older: int = 0
) -> str:
    """The whole page.

    Args:
        older: how many results ddpfix of another state has found.
    """
    lines = ["# ddpfix on this machine", "", *header(machine), ""]
    for section in SECTIONS:
        own = [each for each in outcomes if each.cell.section == section and not each.left_out]
        if own:
            lines += [f"## {TITLES[section]}", "", *([NOTES[section], ""] if NOTES[section] else [])]
            lines += [*table(*TABLES[section](own)), ""]
    lines += ["## Left out", "", *left_out(outcomes, notes), ""]
    wrong = judge.failed(outcomes)
    missing = judge.not_run(outcomes)
    if wrong:
        lines.append(f"{wrong} checks failed.")
    if missing:
        reasons = " | ".join(f"{reason} {count}" for reason, count in sorted(missing.items()))
        lines.append(f"{sum(missing.values())} of {len(outcomes)} cells were not run ({reasons}).")
    if older:
        lines.append(f"{older} results are of another state of ddpfix: run them again (--again) before they are shown.")
    if not wrong and not missing:
        lines.append("All checks passed.")
    lines.append(f"Took {seconds:.0f} s.")
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
            place = (TITLES[each.cell.section], where(each.cell.group), each.left_out)
            reasons.setdefault(place, []).append(each.cell.name)
    lines = [f"- {title} ({group}): {reason}: {few(names)}" for (title, group, reason), names in reasons.items()]
    return [*lines, *(f"- {note}" for note in notes)] or ["- nothing"]


def few(names: Sequence[str], most: int = 6) -> str:
    more = f"; and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def where(group: str) -> str:
    return {"nccl1": "NCCL, 1 rank", "nccl2": "NCCL, 2 ranks", "gloo2": "gloo, 2 ranks"}[group]


def _rows(own: Sequence[Outcome], width: int, row: Callable[[Outcome], List[str]]) -> Rows:
    """A row an outcome; one with an error has that in place of figures. The check comes last."""
    found = []
    for each in own:
        cell = each.cell
        start = [where(cell.group), ", ".join(part for part in (cell.model, cell.kind) if part), cell.mode]
        middle = [f"error: {each.error}", *[""] * (width - 1)] if each.error else row(each)
        found.append([*start, *middle, judge.verdict(each, own)])
    return found


_START = ["group", "model", "mode"]


def _exact(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    def row(each: Outcome) -> List[str]:
        first = each.found[0]
        alike = all(one["ran"] == first["ran"] for one in each.found)
        worst = max(one["gradient"] for one in each.found)
        ranks = "yes" if all(one["steps"] == first["steps"] for one in each.found) else "no"
        # The branch of one model is chosen by each rank's own batch.
        layers = "by batch" if each.cell.model == "branches" else "yes" if alike else "no"
        same = f"{min(one['same'] for one in each.found)} of {len(first['steps'])}"
        return ["yes" if first["flag"] else "no", ranks, layers, f"{worst:.1e}", same]

    head = [*_START, "flag", "ranks equal", "layers alike", "gradient", "as torch's flag", "check"]
    return head, _rows(own, 5, row)


def _speed(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    rows: Rows = []
    for each in own:
        start = [where(each.cell.group), f"{each.cell.model}, {each.cell.kind}"]
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
        look = f"{found['look']['waits']:g}, {found['look']['copies']:g}"
        return ["yes" if found["flag"] else "no", *numbers, f"{found['warned']:g}", look, which or "-"]

    return [*_START, "flag", "waits", "copies", "items", "warned", "look", "which waits", "check"], _rows(own, 7, row)


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


def _alike(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    def row(each: Outcome) -> List[str]:
        first, base = each.found[0], each.cell.options["base"]
        waits = f"{first['counts']['waits'] / 2:g}" if first["counts"] else "-"
        return [str(len(first["steps"])), "" if each.cell.mode == base else base, waits, first["said"] or "-"]

    return ["group", "program", "mode", "steps", "as", "waits a step", "found", "check"], _rows(own, 4, row)


def _said(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    head = ["group", "program", "mode", "found", "check"]
    return head, _rows(own, 1, lambda each: [each.found[0]["said"] or "-"])


def _funasr(own: Sequence[Outcome]) -> Tuple[List[str], Rows]:
    head = ["group", "fix", "trainer", "found", "check"]
    return head, _rows(own, 1, lambda each: [each.found[0]["said"]])


TABLES: Dict[str, Callable[[Sequence[Outcome]], Tuple[List[str], Rows]]] = {
    "exactness": _exact,
    "speed": _speed,
    "table": _speed,
    "syncs": _syncs,
    **dict.fromkeys(("loops", "streams", "graphs"), _alike),
    **dict.fromkeys(("trace", "hangs", "starts", "memory"), _said),
    "precision": _exact,
    "compile": _compile,
    "fsdp": _fsdp,
    "funasr": _funasr,
}
