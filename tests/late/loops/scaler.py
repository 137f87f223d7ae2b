"""Loss scaling and autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.late.loops.kinds import UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, uneven

SCALER = ("torch.amp.GradScaler",)


def scaler(growth: int = 2) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=growth)


@kind(needs=SCALER, three=True)
def scaled_and_clipped(loop: Loop) -> None:
    """GradScaler with unscale_ and clipping."""
    model, scale = loop.wrap(mlp()), scaler()
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        scale.scale(loss(model(loop.batch(step)))).backward()
        loop.sync(model)
        scale.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scale.step(optimizer)
        scale.update()


@kind(needs=SCALER, plain="error", plain_cause=UNFINISHED, three=True)
def scaled_and_clipped_skipping(loop: Loop) -> None:
    """The same with blocks left out."""
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


@kind(needs=SCALER, three=True)
def overflow_on_one_rank(loop: Loop) -> None:
    """A loss is infinite on one rank: averaged gradients are so on all, and all skip the step."""
    model, scale = loop.wrap(mlp()), scaler()
    optimizer = sgd(model)
    for step in loop.steps(5):
        optimizer.zero_grad()
        factor = float("inf") if step in (1, 3) and loop.rank == step % loop.size else 1.0
        scale.scale(loss(model(loop.batch(step))) * factor).backward()
        loop.sync(model)
        scale.step(optimizer)
        scale.update()


@kind(needs=SCALER, plain="error", plain_cause=UNFINISHED, three=True)
def overflow_on_one_rank_skipping(loop: Loop) -> None:
    """The same with blocks left out: a rank that has no gradient for a block has to learn that it is infinite."""
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


@kind(needs=SCALER)
def scaled_heads(loop: Loop) -> None:
    """Two outputs with a scaled backward each."""
    model, scale = loop.wrap(Apart(2)), scaler()
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        for output in model(loop.batch(step)):
            scale.scale(loss(output)).backward()
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
def scaled_by_hand_skipping(loop: Loop) -> None:
    """Loss scaling as apex did it: gradients are divided and checked by hand."""
    model, factor = loop.wrap(Blocks()), 128.0
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        (loss(model(loop.batch(step), uneven(loop.rank, step))) * factor).backward()
        loop.sync(model)
        total = torch.zeros(())
        for p in model.parameters():
            if p.grad is not None:
                p.grad.data.div_(factor)
                total += p.grad.abs().sum()
        if not torch.isfinite(total):
            factor /= 2
            continue
        optimizer.step()


@kind(three=True, close_three=1e-2)
def autocast(loop: Loop) -> None:
    """The forward runs in bfloat16, the backward outside of autocast."""
    for model, step in loop.training(mlp()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(model(loop.batch(step)).float())
        value.backward()


@kind(plain="error", plain_cause=UNFINISHED)
def autocast_skipping(loop: Loop) -> None:
    """Forward and backward in bfloat16 with blocks left out."""
    for model, step in loop.training(Blocks()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss(model(loop.batch(step), uneven(loop.rank, step)).float()).backward()


def _mixed(loop: Loop, dtype: torch.dtype) -> None:
    module = Blocks()
    module.blocks[1].to(dtype)
    module.blocks[1].forward = _cast(module.blocks[1].forward, dtype)
    model = loop.wrap(module)
    for step in loop.trained(model):
        loss(model(loop.batch(step))).backward()


def _cast(forward: Any, dtype: torch.dtype) -> Any:
    return lambda x: forward(x.to(dtype)).float()


@kind(needs=("2.4",))
def half_parameters(loop: Loop) -> None:
    """A model of bfloat16 and float32 parameters, whose gradients go into buckets of their own."""
    _mixed(loop, torch.bfloat16)


@kind(three=True)
def double_parameters(loop: Loop) -> None:
    """The same with float64."""
    _mixed(loop, torch.float64)
