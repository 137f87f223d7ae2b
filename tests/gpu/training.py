"""The modes of DDP that are compared, and a model under DDP with its optimizer, wrapped in one of them."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from typing import Any, ContextManager, Dict, Iterator, List, Optional

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.gpu import models, world
from tests.sharded import wraps

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Mode:
    """One way to train under DDP."""

    settings: Optional[Dict[str, Any]]  # of ``ddpfix.activate``; None is torch without ddpfix
    options: Dict[str, bool] = field(default_factory=dict)  # what the code itself passes to DDP
    traced: bool = False  # whether a trace is written


_FLAG, _VIEWS = {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}
MODES: Dict[str, Mode] = {
    "plain": Mode(None),
    "flag": Mode(None, _FLAG),
    "auto": Mode({}),
    "auto, trace": Mode({}, traced=True),
    "find": Mode({"unused": "find"}),
    "find, views": Mode({"unused": "find"}, _VIEWS),
    "late": Mode({"unused": "late"}),
    "late, views": Mode({"unused": "late"}, _VIEWS),
}


@contextlib.contextmanager
def active(name: str, **settings: Any) -> Iterator[Mode]:
    """ddpfix with a mode's settings and more, switched off again at the end; models are wrapped and trained inside."""
    mode = MODES[name]
    if mode.settings is None:
        yield mode
        return
    if mode.traced and "trace" not in settings:
        with tempfile.TemporaryDirectory(prefix="ddpfix-gpu-") as folder, active(name, trace=folder, **settings):
            yield mode
        return
    import ddpfix

    ddpfix.activate(log="off", **mode.settings, **settings)
    try:
        yield mode
    finally:
        failed = [entry.id for entry in ddpfix.report().patches if entry.state == "failed"]
        left = ddpfix.deactivate()
    # A cure that could not be applied would be measured as if it cost nothing.
    assert not failed, f"ddpfix could not apply {failed}"
    # One mode must not find what another one has left behind.
    assert left == [], f"ddpfix.deactivate() could not take back {left}"


def exactly(wanted: bool) -> None:
    """Whether torch computes the same bits again for the same numbers, at the price of speed."""
    torch.use_deterministic_algorithms(wanted, warn_only=True)
    torch.backends.cudnn.deterministic = wanted
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = not wanted
    torch.set_float32_matmul_precision("highest" if wanted else "high")


def wrapped(model: nn.Module, mode: Mode, cap: float = 0.01) -> Any:
    """The model under DDP, on the rank's device; ranks draw different numbers from here on, as with their own seeds.

    Without a ``cap`` (MB) there are many buckets.
    """
    options: Dict[str, Any] = {"bucket_cap_mb": cap}
    if world.device().type == "cuda":
        options["device_ids"] = [world.device().index]
    made = DistributedDataParallel(model.to(world.device()).train(), **options, **mode.options)
    torch.manual_seed(100 + world.rank())
    return made


def autocast(precision: str) -> ContextManager[Any]:
    """``bf16``, ``fp16``, or "" for none."""
    kind = _TYPES.get(precision)
    return torch.autocast(world.device().type, dtype=kind) if kind is not None else contextlib.nullcontext()


class Run:
    """Takes plain steps; batches lie on the device before the first one."""

    def __init__(self, name: str, rate: float, mode: Mode, batches: int = 4, precision: str = "") -> None:
        self.inner = models.built(name, rate, world.device())
        self.ran = wraps.Ran(self.inner)
        self.model = wrapped(self.inner, mode, models.KINDS[name].cap)
        # The fused one on a GPU: it needs no memory for intermediate results, and no number from the card.
        fused = True if world.device().type == "cuda" else None
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        self.batches = [models.batch(name, number, world.rank(), world.device()) for number in range(batches)]
        self.precision = precision
        self.layers: List[int] = []
        self.number = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.precision):
            loss = models.loss(self.model(**self.batches[self.number % len(self.batches)]))
        loss.backward()
        self.optimizer.step()
        self.layers.append(len(self.ran.take()))
        self.number += 1
