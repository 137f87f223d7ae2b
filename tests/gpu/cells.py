"""Which cells there are: what is run, where, in which mode, and what a machine lacks for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence, Tuple

SECTIONS = ("exactness", "speed", "syncs", "precision", "compile", "fsdp", "funasr")
# (backend, ranks)
GROUPS: Dict[str, Tuple[str, int]] = {"nccl1": ("nccl", 1), "nccl2": ("nccl", 2), "gloo2": ("gloo", 2)}
_LATE = ["flag", "find", "late", "auto"]
_ALL = [*_LATE, "find, all sent", "find, views", "late, all sent", "late, views"]
# With one rank nothing is sent anywhere, and no bucket is looked at.
_ALONE = [mode for mode in _ALL if "sent" not in mode]
_EXACT = ("exactness", "precision", "fsdp")
_WHOLE = ["plain", "flag", "auto", "late"]


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


def everything(machine: Dict[str, Any], quick: bool) -> List[Cell]:
    """All cells, also those that this machine lacks something for."""
    groups = ["nccl1", "gloo2", *(["nccl2"] if machine["devices"] > 1 else [])]
    found: List[Cell] = []
    for group in groups:
        found += [*_exactness(group, quick), *_precision(group, quick), *_fsdp(group, quick)]
    base = ("WavLM-base", "BART-base") if machine["cuda"] else ("narrow WavLM", "narrow BART")
    for group in ("nccl1", "gloo2"):
        found += _speed(group, base, quick, machine["cuda"])
    found += _syncs()
    return [*found, *_compile(machine, quick), *_funasr(machine)]


def _exactness(group: str, quick: bool) -> List[Cell]:
    steps = 4 if quick else 10
    drop: Dict[str, Any] = {"rate": 0.5, "steps": steps}
    branches = {"steps": steps, "optimizer": "sgd"}
    modes = ["flag", "find", "late"] if quick else _ALONE if GROUPS[group][1] == 1 else _ALL
    found = [Cell("exactness", group, "exact", "tiny wav2vec2", mode, "", drop) for mode in modes]
    few = ["late"] if quick else _LATE
    found += [Cell("exactness", group, "exact", "branches", mode, "", branches) for mode in few]
    found += [Cell("exactness", group, "exact", "tiny BART", mode, "", drop) for mode in few]
    twice = {**drop, "accum": 2, "steps": steps // 2}
    return [*found, *(Cell("exactness", group, "exact", "tiny wav2vec2", m, "accumulation", twice) for m in few[1:3])]


def _precision(group: str, quick: bool) -> List[Cell]:
    scaled: Dict[str, Any] = {"precision": "fp16", "scaled": True, "overflow": 2}
    kinds: Dict[str, Dict[str, Any]] = {"bf16": {"precision": "bf16"}, "fp16, GradScaler, one inf": scaled}
    models: Dict[str, Dict[str, Any]] = {"branches": {"optimizer": "sgd"}, "tiny wav2vec2": {"rate": 0.5}}
    return [
        Cell("precision", group, "exact", model, mode, kind, {**own, **more, "steps": 3 if quick else 6})
        for kind, own in kinds.items()
        for model, more in models.items()
        for mode in (["late"] if quick else ["flag", "find", "late"])
    ]


def _fsdp(group: str, quick: bool) -> List[Cell]:
    options = {"rate": 0.5, "steps": 3 if quick else 5}
    # torch alone comes first: where it fails by itself, the other says nothing.
    return [
        Cell("fsdp", group, "sharded", "tiny wav2vec2", mode, kind, options)
        for kind in ("FSDP1", "fully_shard")
        for mode in ("plain", "auto")
    ]


def _speed(group: str, base: Sequence[str], quick: bool, cuda: bool) -> List[Cell]:
    speech, text = base
    if group == "gloo2":
        dropping = [mode for mode in _ALL if mode != "auto"]
        plans = [(speech, 0.5, dropping), (speech, 0.0, _WHOLE), (text, 0.1, ["flag", "find", "late"])]
        plans += [(text, 0.0, ["plain", "late"]), (speech, 0.1, ["flag", "find", "late"])]
    else:
        short = [mode for mode in _ALONE if mode != "auto"]
        plans = [(speech, 0.1, short), (speech, 0.0, _WHOLE), (text, 0.1, short), (text, 0.0, _WHOLE)]
        plans += [(speech, 0.5, short), (text, 0.5, short)]
    if quick:
        plans = [(speech, 0.5, ["flag", "late"])]
    found = []
    for model, rate, modes in plans:
        options = {"rate": rate, "modes": modes, "turns": 2 if quick else 3, "seconds": 0.2 if quick else 0.6}
        limit = 45.0 if group == "gloo2" and cuda else 20.0
        found.append(Cell("speed", group, "speed", model, "", f"rate {rate:g}", options, limit, limit / 3))
    return found


def _syncs() -> List[Cell]:
    plans = [("BART-base", 0.0, _WHOLE), ("BART-base", 0.5, _LATE), ("WavLM-base", 0.0, ["plain", "late"])]
    return [
        Cell("syncs", "nccl1", "syncs", model, mode, f"rate {rate:g}", {"rate": rate, "steps": 8}, least=8.0)
        for model, rate, modes in plans
        for mode in modes
    ]


def _compile(machine: Dict[str, Any], quick: bool) -> List[Cell]:
    inductor = machine["cuda"] and machine["triton"] and machine["compiler"]
    backend = "inductor" if inductor else "aot_eager"
    options = {"rate": 0.5, "steps": 8, "backend": backend, "quick": quick}
    group = "nccl1" if machine["cuda"] else "gloo2"
    return [
        Cell("compile", group, "compiled", "tiny wav2vec2", mode, backend, options, 100.0, 15.0)
        for mode in ("flag", "late", "find")
    ]


def _funasr(machine: Dict[str, Any]) -> List[Cell]:
    release = _numbers(machine["funasr"])
    entries = ["train"] + (["train_ds"] if release >= (1, 0, 28) else [])
    kinds = ["cache", "bf16"] + (["fp16", "fp16, the scale backs off"] if release >= (1, 0, 11) else [])
    return [Cell("funasr", "nccl1", "funasr_fixes", "", entry, kind) for entry in entries for kind in kinds]


def _numbers(version: Any) -> Tuple[int, ...]:
    # Where it is not installed, name what would be run with the newest.
    return tuple(int(part) for part in str(version or "9").split(".") if part.isdigit())


def lacking(cell: Cell, machine: Dict[str, Any]) -> str:
    """Why a cell cannot be run here, or ""."""
    if not machine["transformers"] and cell.section != "funasr" and cell.model != "branches":
        return "transformers is not installed (pip install transformers)"
    if cell.options.get("quick"):
        return "takes longer than --quick allows"
    if cell.section == "funasr" and not machine["funasr"]:
        return "FunASR is not installed (pip install funasr)"
    if cell.section == "funasr" and (1, 0, 6) <= _numbers(machine["funasr"]) < (1, 0, 11) and cell.kind == "cache":
        return "this release of FunASR releases memory after every forward by itself"
    if not machine["cuda"]:
        if GROUPS[cell.group][0] == "nccl":
            return "needs a CUDA device"
        return "autocast to float16 with loss scaling needs a CUDA device" if "fp16" in cell.kind else ""
    if GROUPS[cell.group][0] == "nccl" and not machine["nccl_there"]:
        return "this build of torch has no NCCL"
    return "this device has no bfloat16" if "bf16" in cell.kind and not machine["bf16"] else ""


def launches(cells: Sequence[Cell], cuda: bool) -> List[Tuple[float, List[Cell]]]:
    """(share of the time, cells of one group): what is run by the same processes, in the order of importance.

    Step time has processes of its own: those of exactness have measured a network that was made slow.
    """
    order: List[Tuple[float, str, Sequence[str]]] = [(1.0, "gloo2", _EXACT), (1.0, "gloo2", ("speed", "compile"))]
    if cuda:
        order = [(75.0, "gloo2", _EXACT), (100.0, "nccl1", ("syncs", *_EXACT, "funasr")), (110.0, "nccl1", ("speed",))]
        order += [(75.0, "gloo2", ("speed",)), (95.0, "nccl1", ("compile",)), (40.0, "nccl2", _EXACT)]
    found = []
    for share, group, sections in order:
        picked = [cell for section in sections for cell in cells if (cell.group, cell.section) == (group, section)]
        if picked:
            found.append((share, picked))
    return found
