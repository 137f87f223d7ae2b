"""The table of WavLM-large, to be pasted into docs/costs.md: what each mode costs on a card, by rate of LayerDrop."""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, Sequence

from tests.gpu import report
from tests.gpu.launch import Outcome

_HEAD = ["group", "LayerDrop", "mode", "ms a step", "ratio", "layers", "waits a step", "copies a step", "peak, MB"]
NAMES = {"plain": "torch", "flag": "torch, `find_unused_parameters=True`", "auto": "`auto`", "late": "`late`"}


def rows(outcomes: Sequence[Outcome]) -> List[List[str]]:
    """A row for each mode; ratios to torch without ddpfix at the same rate, in the same turns."""
    own = [each for each in outcomes if each.cell.section == "table" and each.found]
    found = []
    for each in sorted(own, key=lambda one: (one.cell.group, one.cell.options["rate"])):
        for mode in each.cell.options["modes"]:
            if each.found[0]["modes"][mode]["error"] is None:
                found.append([report.where(each.cell.group), f"{each.cell.options['rate']:g}", *_figures(each, mode)])
    return found


def _figures(each: Outcome, mode: str) -> List[str]:
    ranks: List[Dict[str, Any]] = [one["modes"][mode] for one in each.found]
    turns, base = ranks[0]["turns"], each.found[0]["modes"][each.cell.options["modes"][0]]["turns"]
    ratio = median(mine / other for mine, other in zip(turns, base)) if base else float("nan")
    layers = max(sum(one["layers"]) / len(one["layers"]) for one in ranks)
    waits, copies = (max(one["counts"].get(name, 0.0) for one in ranks) for name in ("waits", "copies"))
    peak = max(one["peak"] for one in ranks)
    counted = [f"{waits:.1f}", f"{copies:.1f}", f"{peak:.0f}"] if peak else ["-"] * 3
    return [NAMES[mode], f"{median(turns):.1f}", f"{ratio:.2f}", f"{layers:.1f}", *counted]


def markdown(machine: Dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    found = rows(outcomes)
    if not found:
        return "The table has no row: its cells were not run."
    model = next(each.cell.model for each in outcomes if each.cell.section == "table" and each.found)
    device = machine["device"] if machine["cuda"] else "no CUDA device: the figures mean nothing"
    about = f"{model}, bf16 autocast, fused AdamW, 60 s of audio a step and rank" if machine["cuda"] else model
    releases = f"torch {machine['torch']}, CUDA {machine['cuda_version'] or '-'}, NCCL {machine['nccl'] or '-'}"
    return "\n".join([f"{about}; {device}; {releases}.", "", *report.table(_HEAD, found)])
