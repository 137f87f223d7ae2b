"""FunASR's real trainers on the card: cached memory is released when asked for, and half precision is what it says.

The trainers and their tiny model are those of ``tests/funasr``, moved to the card.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Set

import torch

from tests.gpu import world

WRONG = "not as expected"


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    import funasr  # noqa: F401

    import ddpfix

    ddpfix.activate(log="off", cache="4")
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _ACTS[cell["kind"]](cell["mode"], Path(folder))
    finally:
        ddpfix.deactivate()


def _made(entry: str, folder: Path, scaler: Any = None, slope: float = 1.0, **conf: Any) -> Any:
    """A run of ``tests.funasr.tiny_training`` whose model and trainer are on the card."""
    from tests.funasr import tiny_training

    made = tiny_training.Run(entry, folder, scaler=scaler, slope=slope, **conf)
    made.model.to(world.device())
    made.trainer.device = world.device()
    return made


def _cache(entry: str, folder: Path) -> Dict[str, Any]:
    """Six steps an epoch, released every fourth: once in the first epoch, twice in the second, and memory falls."""
    from tests.funasr import trained

    # Releases between that release by themselves can be told not to.
    quiet: Dict[str, Any] = {"disable_gpu_cache": False} if (1, 0, 11) <= trained.release() < (1, 0, 18) else {}
    made = _made(entry, folder, **quiet)
    stock, seen = torch.cuda.empty_cache, []

    def counted() -> None:
        before = torch.cuda.memory_reserved()
        stock()
        seen.append(before - torch.cuda.memory_reserved())

    torch.cuda.empty_cache = counted
    try:
        epochs = [_epoch(made, seen) for _ in range(2)]
    finally:
        torch.cuda.empty_cache = stock
    ok = [len(each) for each in epochs] == [1, 2] and epochs[0][0] >= 2**28
    said = f"released {' and '.join(str(len(each)) for each in epochs)} times in two epochs of six steps"
    return {
        "wrong": [] if ok else [WRONG],
        "said": f"{said}, {epochs[0][0] / 2**20 if epochs[0] else 0:.0f} MB the first time",
    }


def _epoch(made: Any, seen: List[int]) -> List[int]:
    del seen[:]
    # Left in the allocator's cache for the next release.
    torch.empty(2**28, dtype=torch.uint8, device=world.device())
    made.train()
    return list(seen)


def _bf16(entry: str, folder: Path) -> Dict[str, Any]:
    made = _made(entry, folder, use_bf16=True)
    steps = made.train()
    return _precision(set(made.model.seen), {torch.bfloat16}, steps, [-1.0 * n for n in range(1, 7)])


def _fp16(entry: str, folder: Path) -> Dict[str, Any]:
    """The gradient is 100, the limit 5, and SGD's learning rate 1: a step is 5, unless scaled gradients are clipped."""
    scaler = torch.amp.GradScaler("cuda", init_scale=512.0)
    made = _made(entry, folder, scaler=scaler, slope=100.0, use_fp16=True, grad_clip=5.0)
    return _precision_of(made, [-5.0 * n for n in range(1, 7)])


def _backoff(entry: str, folder: Path) -> Dict[str, Any]:
    """A gradient of 16 in half precision overflows at scales from 2**12 on: four steps are left out, two are taken."""
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**15)
    made = _made(entry, folder, scaler=scaler, slope=16.0, use_fp16=True, grad_clip=5.0)
    found = _precision_of(made, [-5.0, -10.0])
    scale = made.scaler.get_scale()
    wrong = found["wrong"] if scale == 2.0**11 else [WRONG]
    return {"wrong": wrong, "said": f"{found['said']}; scale {scale:g}"}


def _precision_of(made: Any, expected: List[float]) -> Dict[str, Any]:
    steps = made.train()
    return _precision(set(made.model.seen), {torch.float16}, steps, expected)


def _precision(seen: Set[Any], wanted: Set[Any], steps: List[float], expected: List[float]) -> Dict[str, Any]:
    near = len(steps) == len(expected) and all(abs(a - b) <= 1e-3 * abs(b) for a, b in zip(steps, expected))
    kinds = ", ".join(sorted(str(kind).replace("torch.", "") for kind in seen))
    return {
        "wrong": [] if seen == wanted and near else [WRONG],
        "said": f"forward in {kinds}; parameter after each step {steps}",
    }


_ACTS: Dict[str, Callable[[str, Path], Dict[str, Any]]] = {
    "cache": _cache,
    "bf16": _bf16,
    "fp16": _fp16,
    "fp16, the scale backs off": _backoff,
}
