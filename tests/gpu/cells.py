"""What a cell is, in which groups cells run, and what a machine lacks for one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Tuple

# (backend, ranks)
GROUPS: Dict[str, Tuple[str, int]] = {"nccl1": ("nccl", 1), "nccl2": ("nccl", 2), "gloo2": ("gloo", 2)}


@dataclass(frozen=True)
class Cell:
    """One thing that ranks do and report on.

    Attributes:
        act: the module of this folder whose ``run`` is called.
        kind: what the act tells apart beside model and mode.
        limit: seconds after which it is ended.
        least: seconds without which it is not begun.
    """

    section: str
    group: str
    act: str
    model: str = ""
    mode: str = ""
    kind: str = ""
    options: Dict[str, Any] = field(default_factory=dict)
    limit: float = 40.0
    least: float = 6.0

    @property
    def name(self) -> str:
        return ", ".join(part for part in (self.kind, self.model, self.mode) if part)


def numbers(version: Any) -> Tuple[int, ...]:
    # Where it is not installed, name what would be run with the newest.
    return tuple(int(part) for part in str(version or "9").split(".") if part.isdigit())


def lacking(cell: Cell, machine: Dict[str, Any]) -> str:
    """Why a cell cannot be run here, or ""."""
    if not machine["transformers"] and cell.model not in ("", "branches"):
        return "transformers is not installed (pip install transformers)"
    return (_funasr(cell, machine) if cell.section == "funasr" else "") or _card(cell, machine)


def _funasr(cell: Cell, machine: Dict[str, Any]) -> str:
    if not machine["funasr"]:
        return "FunASR is not installed (pip install funasr)"
    if (1, 0, 6) <= numbers(machine["funasr"]) < (1, 0, 11) and cell.kind == "cache":
        return "this release of FunASR releases memory after every forward by itself"
    return ""


def _card(cell: Cell, machine: Dict[str, Any]) -> str:
    nccl = GROUPS[cell.group][0] == "nccl"
    if not machine["cuda"]:
        if nccl:
            return "needs a CUDA device"
        return "autocast to float16 with loss scaling needs a CUDA device" if "fp16" in cell.kind else ""
    if nccl and not machine["nccl_there"]:
        return "this build of torch has no NCCL"
    if machine["devices"] < 2 and (cell.group == "nccl2" or cell.options.get("cards", 1) > 1):
        return "needs two cards"
    if cell.options.get("memory", 0) > machine["memory"]:
        return f"needs a card with {cell.options['memory'] // 1000} GB"
    bf16 = "bf16" in cell.kind or cell.options.get("precision") == "bf16"
    return "this device has no bfloat16" if bf16 and not machine["bf16"] else ""
