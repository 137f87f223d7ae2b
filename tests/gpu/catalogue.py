"""Every cell: exactness, step time and waits of models here, programs of other kinds in :mod:`tests.gpu.programs`."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from tests.gpu import programs
from tests.gpu.cells import GROUPS, SECTIONS, Cell, numbers

_LATE = ["flag", "find", "late", "auto"]
_ALL = [*_LATE, "find, views", "late, views"]
_WHOLE = ["plain", "flag", "auto", "late"]
_CHECKPOINTS = ("reentrant", "non-reentrant", "whole encoder, reentrant", "whole encoder, non-reentrant")


def everything(machine: Dict[str, Any], quick: bool) -> List[Cell]:
    """All cells, also those that this machine lacks something for."""
    cuda = machine["cuda"]
    found: List[Cell] = []
    base = ("WavLM-base", "BART-base") if cuda else ("narrow WavLM", "narrow BART")
    for group in GROUPS:
        found += [
            *_syncs(group, quick, cuda),
            *_exactness(group, quick),
            *_precision(group, quick),
            *_fsdp(group, quick),
        ]
        found += _speed(group, base, quick, cuda)
    found += [*programs.everything(cuda, quick), *_compile(machine, quick), *_funasr(machine)]
    return sorted(found, key=lambda cell: SECTIONS.index(cell.section))


def _exactness(group: str, quick: bool) -> List[Cell]:
    steps = 4 if quick else 10
    drop: Dict[str, Any] = {"rate": 0.5, "steps": steps}
    branches = {"steps": steps, "optimizer": "sgd"}
    modes = ["flag", "find", "late"] if quick else _ALL
    found = [Cell("exactness", group, "exact", "tiny wav2vec2", mode, "", drop) for mode in modes]
    few = ["late"] if quick else _LATE
    found += [Cell("exactness", group, "exact", "branches", mode, "", branches) for mode in few]
    found += [Cell("exactness", group, "exact", "tiny BART", mode, "", drop) for mode in few]
    twice = {**drop, "accum": 2, "steps": steps // 2}
    found += [Cell("exactness", group, "exact", "tiny wav2vec2", mode, "accumulation", twice) for mode in few[1:3]]
    # torch's own flag ends a reentrant checkpoint with an error.
    return found + [
        Cell(
            "exactness", group, "exact", "tiny wav2vec2", mode, kind, {**drop, "steps": steps // 2, "checkpoints": kind}
        )
        for kind in _CHECKPOINTS
        for mode in (["late"] if quick else ["late", "auto"])
    ]


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
    short = [mode for mode in _ALL if mode != "auto"]
    if group == "nccl2":
        plans = [(speech, 0.1, ["flag", "find", "late"]), (speech, 0.0, _WHOLE), (text, 0.1, ["flag", "late"])]
    elif group == "gloo2":
        plans = [(speech, 0.5, short), (speech, 0.0, _WHOLE), (text, 0.1, ["flag", "find", "late"])]
        plans += [(text, 0.0, _WHOLE), (speech, 0.1, ["flag", "find", "late"])]
    else:
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


def _syncs(group: str, quick: bool, cuda: bool) -> List[Cell]:
    """In a group of one nothing is compared or skipped; gloo sends small models only in the time there is."""
    small = ("narrow WavLM", "narrow BART") if cuda else ("tiny wav2vec2", "tiny BART")
    speech, text = small if group == "gloo2" else ("WavLM-base", "BART-base")
    plans = [(text, 0.0, [*_WHOLE, "auto, trace"]), (text, 0.5, _LATE), (speech, 0.0, ["plain", "late"])]
    if quick:
        plans = [(text, 0.0, ["plain", "auto", "auto, trace"]), (text, 0.5, ["late"])]
    steps = 2 if quick else 8
    return [
        Cell("syncs", group, "syncs", model, mode, f"rate {rate:g}", {"rate": rate, "steps": steps}, least=8.0)
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
    release = numbers(machine["funasr"])
    entries = ["train"] + (["train_ds"] if release >= (1, 0, 28) else [])
    kinds = ["cache", "bf16"] + (["fp16", "fp16, the scale backs off"] if release >= (1, 0, 11) else [])
    return [Cell("funasr", "nccl1", "funasr_fixes", "", entry, kind) for entry in entries for kind in kinds]
