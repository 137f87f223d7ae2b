"""FunASR's real trainers on the card: cached memory is released when asked for, and half precision is what it says.

The trainers and their tiny model are those of ``tests/funasr``, moved to the card.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from tests.gpu import world


class Half(NamedTuple):
    """Training in half precision: what it is given, and the parameter after each step."""

    type: torch.dtype
    slope: float
    expected: List[float]
    # Of the losses, before and after an epoch.
    scale: Optional[float] = None
    after: float = 0.0


HALF: Dict[str, Half] = {
    "bf16": Half(torch.bfloat16, 1.0, [-1.0 * n for n in range(1, 7)]),
    # The gradient is 100, the limit 5, and SGD's learning rate 1: a step is 5, unless scaled gradients are clipped.
    "fp16": Half(torch.float16, 100.0, [-5.0 * n for n in range(1, 7)], 512.0, 512.0),
    # A gradient of 16 overflows at scales from 2**12 on: four steps are left out, two are taken.
    "fp16, the scale backs off": Half(torch.float16, 16.0, [-5.0, -10.0], 2.0**15, 2.0**11),
}


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    import funasr  # noqa: F401

    import ddpfix

    ddpfix.activate(log="off", cache="4")
    try:
        with tempfile.TemporaryDirectory() as folder:
            if cell["kind"] == "cache":
                return _cache(cell["mode"], Path(folder))
            return _half(cell["mode"], Path(folder), HALF[cell["kind"]])
    finally:
        ddpfix.deactivate()


def _made(entry: str, folder: Path, **conf: Any) -> Any:
    """A run of ``tests.funasr.tiny_training`` whose model and trainer are on the card."""
    from tests.funasr import tiny_training

    made = tiny_training.Run(entry, folder, **conf)
    made.model.to(world.device())
    made.trainer.device = world.device()
    return made


def _cache(entry: str, folder: Path) -> Dict[str, Any]:
    """Six steps an epoch, released every fourth: once in the first epoch, twice in the second, and memory falls."""
    from tests.funasr import trained

    # Releases between that release by themselves can be told not to.
    quiet: Dict[str, Any] = {"disable_gpu_cache": False} if (1, 0, 11) <= trained.release() < (1, 0, 18) else {}
    made = _made(entry, folder, **quiet)
    stock: Any = torch.cuda.empty_cache
    epochs: List[List[int]] = []

    def counted() -> None:
        before = torch.cuda.memory_reserved()
        stock()
        epochs[-1].append(before - torch.cuda.memory_reserved())

    torch.cuda.empty_cache = counted
    try:
        for _ in range(2):
            epochs.append([])
            # Left in the allocator's cache for the next release.
            torch.empty(2**28, dtype=torch.uint8, device=world.device())
            made.train()
    finally:
        torch.cuda.empty_cache = stock
    ok = [len(each) for each in epochs] == [1, 2] and epochs[0][0] >= 2**28
    said = f"released {' and '.join(str(len(each)) for each in epochs)} times in two epochs of six steps"
    megabytes = epochs[0][0] / 2**20 if epochs[0] else 0
    return {"wrong": [] if ok else ["not as expected"], "said": f"{said}, {megabytes:.0f} MB the first time"}


def _half(entry: str, folder: Path, half: Half) -> Dict[str, Any]:
    conf: Dict[str, Any] = {"use_bf16": True}
    if half.scale is not None:
        scaler = torch.amp.GradScaler("cuda", init_scale=half.scale)
        conf = {"use_fp16": True, "grad_clip": 5.0, "scaler": scaler}
    made = _made(entry, folder, slope=half.slope, **conf)
    steps, seen = made.train(), set(made.model.seen)
    scale = made.scaler.get_scale() if made.scaler is not None else 0.0
    near = len(steps) == len(half.expected) and all(abs(a - b) <= 1e-3 * abs(b) for a, b in zip(steps, half.expected))
    ok = seen == {half.type} and near and scale == half.after
    kinds = ", ".join(sorted(str(kind).replace("torch.", "") for kind in seen))
    said = f"forward in {kinds}; parameter after each step {steps}; scale {scale:g}"
    return {"wrong": [] if ok else ["not as expected"], "said": said}
