"""The cells of programs: loops, streams, graphs, traces, hangs, starts, memory, and the table for the README."""

from __future__ import annotations

from typing import List

from tests.gpu.cells import Cell
from tests.gpu.child import LATE

_LOOPS = (
    "siamese, 12 buffers",
    "GAN",
    "two backwards",
    "gradient penalty",
    "accumulation",
)
_STREAMS = ("DDP built on a side stream", "whole loop on a side stream", "outputs of two streams")
_GRAPHS = ("make_graphed_callables", "reduce-overhead", "captures while a trace is written", "whole step captured")
_HANGS = (".item() in the script", ".item() in a toolkit", "GradScaler", "a full launch queue")
# MB of a card that WavLM-large needs, as far as one can tell without one.
_LARGE = 32_000
_STARTS = ("device_id", "cpu:gloo,cuda:nccl", "backend None")


def everything(cuda: bool, quick: bool) -> List[Cell]:
    # Without a card, two ranks over gloo stand for the one that has NCCL.
    one = "nccl1" if cuda else "gloo2"
    found: List[Cell] = []
    for group in ("gloo2", "nccl1", "nccl2"):
        found += [*_loops(group, quick), *_streams(group, quick), _trace(group, quick)]
    found += [*_hangs(), *_starts(one, cuda), _memory()]
    for group in (one, "nccl2"):
        found += [*_graphs(group, quick), *_table(group, cuda, quick)]
    return found


def _loops(group: str, quick: bool) -> List[Cell]:
    modes = ("plain", "late") if quick else ("plain", "auto", "late")
    options = {"steps": 3 if quick else 10, "base": "plain"}
    return [Cell("loops", group, "loops", "", mode, kind, options) for kind in _LOOPS for mode in modes]


def _streams(group: str, quick: bool) -> List[Cell]:
    # Ranks run different branches: torch needs its flag.
    modes = ("flag", "late") if quick else ("flag", "auto", "late")
    options = {"steps": 3 if quick else 12, "base": "flag"}
    return [Cell("streams", group, "streams", "", mode, kind, options) for kind in _STREAMS for mode in modes]


def _trace(group: str, quick: bool) -> Cell:
    return Cell("trace", group, "traced", "", "auto", "against numbers read by hand", {"steps": 4 if quick else 20})


def _graphs(group: str, quick: bool) -> List[Cell]:
    options = {"steps": 2 if quick else 5, "base": "plain"}
    # torch alone comes first: where it fails by itself, the others say nothing.
    return [
        Cell("graphs", group, "graphs", "", mode, kind, options)
        for kind in _GRAPHS
        for mode in ("plain", "auto, trace" if "trace" in kind else "auto", *(() if "trace" in kind else ("late",)))
    ]


def _hangs() -> List[Cell]:
    found = [Cell("hangs", "gloo2", "hangs", "", "", kind, {}, least=12.0) for kind in _HANGS]
    late = {"steps": 3}
    return found + [
        Cell("hangs", group, "children", "", "auto", LATE, late, 70.0, 30.0) for group in ("gloo2", "nccl2")
    ]


def _starts(group: str, cuda: bool) -> List[Cell]:
    options = {"steps": 3}
    found = [Cell("starts", group, "children", "", "auto", kind, options, 130.0, 20.0) for kind in _STARTS]
    kinds = ("device_id", "no set_device")
    found += [Cell("starts", "nccl2", "children", "", "auto", kind, options, 130.0, 20.0) for kind in kinds]
    both = {**options, "cards": 2}
    return [*found, Cell("starts", group, "children", "", "auto", "module over both cards", both, 130.0, 20.0)]


def _memory() -> Cell:
    options = {"megabytes": 1024, "on_cpu": 4}
    return Cell("memory", "gloo2", "look", "", "auto", "embedding of 1 GB, bf16", options, 60.0, 25.0)


def _table(group: str, cuda: bool, quick: bool) -> List[Cell]:
    model = "WavLM-large" if cuda else "tiny wav2vec2"
    found = []
    for rate in (0.1,) if quick else (0.1, 0.5, 0.0):
        modes = [*(["plain"] if not rate else []), "flag", "auto", "late"]
        options = {"rate": rate, "modes": modes, "precision": "bf16", "profiled": 1 if quick else 3}
        options.update(turns=1 if quick else 2, seconds=0.2 if quick else 1.5, memory=_LARGE if cuda else 0)
        found.append(Cell("table", group, "speed", model, "", f"rate {rate:g}", options, 60.0, 20.0))
    return found
