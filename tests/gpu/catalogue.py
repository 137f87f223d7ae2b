"""Every cell: exactness and waits of models, time of a large one; loops, streams, graphs, hangs, starts and memory."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, Sequence, Tuple

from tests.gpu.cells import BOTH, GROUPS, LATE, Cell, numbers
from tests.gpu.sections import SECTIONS

_LATE = ("flag", "find", "late", "auto")
_ALL = (*_LATE, "find, views", "late, views")
_WHOLE = ("plain", "flag", "auto", "late")
_CHECKPOINTS = ("reentrant", "non-reentrant", "whole encoder, reentrant", "whole encoder, non-reentrant")
_LOOPS = ("siamese, 12 buffers", "GAN", "two backwards", "gradient penalty", "accumulation")
_STREAMS = ("DDP built on a side stream", "whole loop on a side stream", "outputs of two streams")
_HANGS = (".item() in the script", ".item() in a toolkit", "GradScaler", "a full launch queue")
_STARTS = ("device_id", "cpu:gloo,cuda:nccl", "backend None")
# MB of a card that WavLM-large needs, as far as one can tell without one.
_LARGE = 32_000


Names = Sequence[str]
Options = Dict[str, Any]


def everything(machine: Dict[str, Any], quick: bool) -> List[Cell]:
    """All cells, also those that this machine lacks something for."""
    cuda = machine["cuda"]
    found = []
    for group in GROUPS:
        found += [*_exactness(group, quick), *_precision(group, quick), *_programs(group, quick)]
        found += [*_syncs(group, quick, cuda)]
    # Without a card, two ranks over gloo stand for the one that has NCCL.
    one = "nccl1" if cuda else "gloo2"
    found += _starts(one)
    for group in (one, "nccl2"):
        found += [*_graphs(group, quick), *_table(group, cuda, quick)]
    found += _funasr(machine)
    return sorted(found, key=lambda cell: list(SECTIONS).index(cell.section))


def _each(section: str, group: str, act: str, modes: Names, kinds: Names, options: Options, **more: Any) -> List[Cell]:
    """A cell for each kind in each mode."""
    made = partial(Cell, section, group, act, options=options, **more)
    return [made(mode=mode, kind=kind) for kind in kinds for mode in modes]


def _exactness(group: str, quick: bool) -> List[Cell]:
    steps, few = 4 if quick else 10, ("late",) if quick else _LATE
    drop, speech = {"rate": 0.5, "steps": steps}, "tiny wav2vec2"
    rows: List[Tuple[str, Names, str, Options]] = [
        (speech, ("flag", "find", "late") if quick else _ALL, "", drop),
        ("branches", few, "", {"steps": steps, "optimizer": "sgd"}),
        ("tiny BART", few, "", drop),
        (speech, few[1:3], "accumulation", {**drop, "steps": steps // 2, "accum": 2}),
    ]
    # torch's own flag ends a reentrant checkpoint with an error.
    for kind in _CHECKPOINTS:
        options = {**drop, "steps": steps // 2, "checkpoints": kind}
        rows.append((speech, few if quick else ("late", "auto"), kind, options))
    found = []
    for model, modes, kind, options in rows:
        found += _each("exactness", group, "exact", modes, [kind], options, model=model)
    return found


def _precision(group: str, quick: bool) -> List[Cell]:
    scaled: Dict[str, Any] = {"precision": "fp16", "scaled": True, "overflow": 2}
    kinds: Dict[str, Dict[str, Any]] = {"bf16": {"precision": "bf16"}, "fp16, GradScaler, one inf": scaled}
    models: Dict[str, Dict[str, Any]] = {"branches": {"optimizer": "sgd"}, "tiny wav2vec2": {"rate": 0.5}}
    modes, found = ["late"] if quick else ["flag", "find", "late"], []
    for kind, own in kinds.items():
        for model, more in models.items():
            options = {**own, **more, "steps": 3 if quick else 6}
            found += _each("precision", group, "exact", modes, [kind], options, model=model)
    return found


def _syncs(group: str, quick: bool, cuda: bool) -> List[Cell]:
    """In a group of one nothing is compared or skipped; gloo sends small models only in the time there is."""
    small = ("narrow WavLM", "narrow BART") if cuda else ("tiny wav2vec2", "tiny BART")
    speech, text = small if group == "gloo2" else ("WavLM-base", "BART-base")
    plans = [(text, 0.0, (*_WHOLE, "auto, trace")), (text, 0.5, _LATE), (speech, 0.0, ("plain", "late"))]
    if quick:
        plans = [(text, 0.0, ("plain", "auto", "auto, trace")), (text, 0.5, ("late",))]
    found = []
    for model, rate, modes in plans:
        options = {"rate": rate, "steps": 2 if quick else 8}
        found += _each("syncs", group, "syncs", modes, [f"rate {rate:g}"], options, model=model, least=8.0)
    return found


def _programs(group: str, quick: bool) -> List[Cell]:
    modes = ("late",) if quick else ("auto", "late")
    found = []
    # In streams ranks run different branches: torch needs its flag.
    for section, base, kinds, steps in (("loops", "plain", _LOOPS, 10), ("streams", "flag", _STREAMS, 12)):
        options = {"steps": 3 if quick else steps, "base": base}
        found += _each(section, group, "programs", (base, *modes), kinds, options)
    options = {"steps": 4 if quick else 20}
    return found + _each("trace", group, "traced", ["auto"], ["against numbers read by hand"], options)


def _graphs(group: str, quick: bool) -> List[Cell]:
    options = {"steps": 2 if quick else 5, "base": "plain"}
    # torch alone comes first: where it fails by itself, the others say nothing.
    kinds = ("make_graphed_callables", "reduce-overhead")
    return [
        *_each("graphs", group, "programs", ("plain", "auto", "late"), kinds, options),
        *_each("graphs", group, "programs", ("plain", "auto, trace"), ["captures while a trace is written"], options),
        *_each("graphs", group, "programs", ("plain", "auto", "late"), ["whole step captured"], options),
    ]


def _starts(one: str) -> List[Cell]:
    """Hangs, starts of groups, and memory."""
    steps = {"steps": 3}
    both = {**steps, "cards": 2}
    found = _each("hangs", "gloo2", "hangs", [""], _HANGS, {}, least=12.0)
    for group in ("gloo2", "nccl2"):
        found += _each("hangs", group, "children", ["auto"], [LATE], steps, limit=70.0, least=30.0)
    kinds = {(one, _STARTS): steps, ("nccl2", ("device_id", "no set_device")): steps}
    for (group, own), options in {**kinds, (one, (BOTH,)): both}.items():
        found += _each("starts", group, "children", ["auto"], own, options, limit=130.0, least=20.0)
    kind, memory = "embedding of 1 GB, bf16", {"megabytes": 1024, "on_cpu": 4}
    return found + _each("memory", "gloo2", "look", ["auto"], [kind], memory, limit=60.0, least=25.0)


def _table(group: str, cuda: bool, quick: bool) -> List[Cell]:
    model, found = "WavLM-large" if cuda else "tiny wav2vec2", []
    for rate in (0.1,) if quick else (0.1, 0.5, 0.0):
        modes = [*(["plain"] if not rate else []), "flag", "auto", "late"]
        options = {"rate": rate, "modes": modes, "precision": "bf16", "profiled": 1 if quick else 3}
        options.update(turns=1 if quick else 2, seconds=0.2 if quick else 1.5, memory=_LARGE if cuda else 0)
        more: Options = {"model": model, "limit": 60.0, "least": 20.0}
        found += _each("table", group, "speed", [""], [f"rate {rate:g}"], options, **more)
    return found


def _funasr(machine: Dict[str, Any]) -> List[Cell]:
    release = numbers(machine["funasr"])
    entries = ["train"] + (["train_ds"] if release >= (1, 0, 28) else [])
    kinds = ["cache", "bf16"] + (["fp16", "fp16, the scale backs off"] if release >= (1, 0, 11) else [])
    return _each("funasr", "nccl1", "funasr_fixes", entries, kinds, {})
