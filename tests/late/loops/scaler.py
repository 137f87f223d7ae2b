"""Loss scaling and autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.late.loops.kinds import UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Blocks, loss, mlp, uneven

SCALER = ("torch.amp.GradScaler",)


def scaler(growth: int = 2) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=growth)


@kind(needs=SCALER, plain="error", plain_cause=UNFINISHED, three=True)
def scaled_and_clipped_skipping(loop: Loop) -> None:
    """GradScaler with unscale_ and clipping, blocks are left out."""
    model, scale = loop.wrap(Blocks()), scaler()
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        scale.scale(loss(model(loop.batch(step), uneven(loop.rank, step)))).backward()
        loop.sync(model)
        scale.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scale.step(optimizer)
        scale.update()


@kind(needs=SCALER, plain="error", plain_cause=UNFINISHED, three=True)
def overflow_on_one_rank_skipping(loop: Loop) -> None:
    """A loss is infinite on one rank, blocks are left out: a rank without a gradient has to learn of it."""
    model, scale = loop.wrap(Blocks()), scaler()
    optimizer = sgd(model)
    for step in loop.steps(5):
        optimizer.zero_grad()
        factor = float("inf") if step in (1, 3) and loop.rank == step % loop.size else 1.0
        scale.scale(loss(model(loop.batch(step), uneven(loop.rank, step))) * factor).backward()
        loop.sync(model)
        scale.step(optimizer)
        scale.update()


@kind(needs=(*SCALER, "2.4"), plain="error", plain_cause=UNFINISHED)
def scaled_and_fused_skipping(loop: Loop) -> None:
    """A fused optimizer unscales gradients itself, within its step; each block is used by some rank."""
    model, scale = loop.wrap(Blocks()), scaler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for step in loop.steps():
        optimizer.zero_grad()
        skips = (1,) if loop.rank == step % 2 else (2, 3)
        scale.scale(loss(model(loop.batch(step), skips))).backward()
        loop.sync(model)
        scale.step(optimizer)
        scale.update()


@kind(needs=SCALER, three=True)
def one_scaler_for_two_optimizers(loop: Loop) -> None:
    """Two models, two optimizers, one scaler: the second model's backward comes after the first one's unscale_."""
    one, other, scale = loop.wrap(mlp()), loop.wrap(mlp()), scaler()
    optimizers = [sgd(one), sgd(other)]
    for step in loop.steps():
        for model, optimizer in zip((one, other), optimizers):
            optimizer.zero_grad()
            scale.scale(loss(model(loop.batch(step)))).backward()
            loop.sync(model)
            scale.unscale_(optimizer)
        for optimizer in optimizers:
            scale.step(optimizer)
        scale.update()


@kind(plain="error", plain_cause=UNFINISHED)
def autocast_skipping(loop: Loop) -> None:
    """Forward and backward in bfloat16 with blocks left out."""
    for model, step in loop.training(Blocks()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss(model(loop.batch(step), uneven(loop.rank, step)).float()).backward()


@kind(needs=("2.4",))
def half_parameters(loop: Loop) -> None:
    """A model of bfloat16 and float32 parameters, whose gradients go into buckets of their own."""
    module = Blocks()
    half = module.blocks[1].to(torch.bfloat16).forward
    module.blocks[1].forward = lambda x: half(x.to(torch.bfloat16)).float()  # type: ignore[method-assign]
    model = loop.wrap(module)
    for step in loop.trained(model):
        loss(model(loop.batch(step))).backward()
