"""Exceptions that a loop catches, batches that it skips, and numbers that are not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.late.loops.kinds import UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp


class Bad(nn.Module):
    """Raises in its forward where the input says so, after its first part has run."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = mlp(), mlp()

    def forward(self, x: torch.Tensor, bad: bool) -> torch.Tensor:
        x = self.one(x)
        if bad:
            raise ValueError("a bad batch")
        return self.other(x)


@kind(three=True)
def forward_raises(loop: Loop) -> None:
    """The forward raises on all ranks in some steps, and the loop goes on."""
    model = loop.wrap(Bad())
    optimizer = sgd(model)
    for step in loop.steps(5):
        optimizer.zero_grad()
        try:
            value = loss(model(loop.batch(step), step in (1, 2)))
        except ValueError:
            continue
        value.backward()
        loop.update(optimizer, model)


@kind(plain="hangs", ours="plain")
def forward_raises_on_one_rank(loop: Loop) -> None:
    """The forward raises on one rank, which goes on: ranks are a batch apart, and the last step has no partner."""
    model = loop.wrap(Bad())
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        try:
            value = loss(model(loop.batch(step), step == 2 and loop.rank == 1))
        except ValueError:
            loop.update(optimizer, model)
            continue
        value.backward()
        loop.update(optimizer, model)


def _raising(times: int) -> Any:
    left = [times]

    def hook(slope: torch.Tensor) -> None:
        if left[0]:
            left[0] -= 1
            raise MemoryError("out of memory, say")

    return hook


@kind(plain="error", plain_cause=UNFINISHED, ours="either", cause="ddpfix:|" + UNFINISHED)
def backward_raises(loop: Loop) -> None:
    """A hook raises within backward on all ranks; whether buckets were on their way is known to a rank only."""
    model = loop.wrap(Blocks())
    optimizer, hook = sgd(model), _raising(1)
    for step in loop.steps(5):
        optimizer.zero_grad()
        value = loss(model(loop.batch(step)))
        if step == 2:
            model.module.blocks[1].weight.register_hook(hook)
        try:
            value.backward()
        except MemoryError:
            continue
        loop.update(optimizer, model)


@kind()
def backward_raises_before_anything(loop: Loop) -> None:
    """A hook on the output raises before any parameter has got a gradient, on all ranks."""
    model = loop.wrap(Blocks())
    optimizer, hook = sgd(model), _raising(1)
    for step in loop.steps(5):
        optimizer.zero_grad()
        output = model(loop.batch(step))
        if step == 2:
            output.register_hook(hook)
        try:
            loss(output).backward()
        except MemoryError:
            continue
        loop.update(optimizer, model)


@kind()
def retried_before_backward(loop: Loop) -> None:
    """A forward that runs out of memory on one rank is retried there with two halves; ranks stay together."""
    for model, step in loop.training(Bad(), count=5):
        x = loop.batch(step)
        try:
            value = loss(model(x, step == 2 and loop.rank == 0))
        except ValueError:
            with model.no_sync():
                (loss(model(x[:2], False)) / 2).backward()
            value = loss(model(x[2:], False)) / 2
        value.backward()


@kind(plain="hangs", ours="plain", three=True)
def nan_guard_with_a_constant(loop: Loop) -> None:
    """A NaN loss is replaced by a constant: nothing on this rank shows that a backward of the model was meant."""
    for model, step in loop.training(mlp(), count=5):
        value = loss(model(loop.batch(step)))
        if step == 2 and loop.rank == 0:
            value = torch.zeros((), requires_grad=True)
        value.backward()


@kind(
    plain="error",
    plain_cause=UNFINISHED,
    ours="error",
    cause="(?s)cause: earlier steps ran 2 backwards, the last one ran 1.*cure: call backward equally often",
)
def left_after_the_first_backward(loop: Loop) -> None:
    """An early ``continue`` after the first of two backwards; gradients may have been used by hand before it."""
    model = loop.wrap(Apart(2))
    optimizer = sgd(model)
    for step in loop.steps(5):
        optimizer.zero_grad()
        first, second = model(loop.batch(step))
        loss(first).backward()
        loop.sync(model)
        if step in (1, 2):
            continue
        loss(second).backward()
        loop.update(optimizer, model)
