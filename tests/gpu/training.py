"""A model under DDP with its optimizer, wrapped in one mode."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Dict, List

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.gpu import models, world
from tests.gpu.modes import Mode
from tests.sharded import wraps

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


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


def adamw(model: nn.Module) -> Any:
    """The fused one on a GPU: it needs no memory for intermediate results, and no number from the card."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True if world.device().type == "cuda" else None)


class Run:
    """Takes plain steps; batches lie on the device before the first one."""

    def __init__(self, name: str, rate: float, mode: Mode, batches: int = 4, precision: str = "") -> None:
        self.inner = models.built(name, rate, world.device())
        self.ran = wraps.Ran(self.inner)
        self.model = wrapped(self.inner, mode, models.KINDS[name].cap)
        self.optimizer = adamw(self.model)
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
