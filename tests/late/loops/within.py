"""Loops whose backwards run within the wrapper's own forward, where the program prepares DDP by hand.

Lightning's manual optimization is such a loop: the training step is the wrapped module's forward.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple

import torch
from torch import nn

from tests.late.loops.kinds import UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Blocks, loss, mlp, uneven

STEPS = 5
# Where torch's error stays before: DDP cannot be asked there whether it waits.
FINALIZED = ("2.1",)


class Within(nn.Module):
    """A module whose forward trains another one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module

    def forward(self, action: Callable[[], Any]) -> Any:
        return action()


def prepared(loop: Loop, model: Any, value: torch.Tensor) -> None:
    """A backward of which DDP reduces the gradients, as Lightning makes it."""
    if not loop.hand:
        model.reducer._rebuild_buckets()
        model.reducer.prepare_for_backward([])
    value.backward()
    loop.sync(model)


def step_within(loop: Loop, model: Any, action: Callable[[], Any]) -> None:
    """A forward of the wrapper that prepares nothing by itself."""
    model.require_backward_grad_sync = False
    model(action)
    model.require_backward_grad_sync = True


def blocks_after(loop: Loop, model: Any, step: int, skips: Sequence[int] = ()) -> None:
    """A usual step of blocks that are in a :class:`Within`."""
    loss(model(lambda: model.module.inner(loop.batch(step), skips))).backward()
    loop.sync(model)


def blocks_within(loop: Loop, model: Any, step: int, skips: Sequence[int] = ()) -> None:
    """The same with its backward within the forward."""
    step_within(loop, model, lambda: prepared(loop, model, loss(model.module.inner(loop.batch(step), skips))))


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.d = mlp(), mlp(1)


def train_pair(loop: Loop, model: Any, pair: Pair, optimizers: Tuple[Any, Any], x: torch.Tensor) -> None:
    """Train one part after the other, each with the other one frozen."""
    for part, other, optimizer in ((pair.g, pair.d, optimizers[0]), (pair.d, pair.g, optimizers[1])):
        for parameter in other.parameters():
            parameter.requires_grad_(False)
        optimizer.zero_grad()
        prepared(loop, model, loss(pair.d(pair.g(x))) * (1 if part is pair.g else -1))
        optimizer.step()
        for parameter in other.parameters():
            parameter.requires_grad_(True)


@kind(plain="error", plain_cause=UNFINISHED, three=True, needs=FINALIZED)
def within_pair(loop: Loop) -> None:
    """A generator and a discriminator in one wrapper, trained by Lightning's manual optimization."""
    pair = Pair()
    model = loop.wrap(Within(pair))
    optimizers = sgd(pair.g), sgd(pair.d, momentum=0.9)
    for step in loop.steps(STEPS):
        step_within(loop, model, lambda s=step: train_pair(loop, model, pair, optimizers, loop.batch(s)))  # type: ignore[misc]


@kind(plain="right", three=True)
def within_all_used(loop: Loop) -> None:
    """One backward within the forward, of every parameter."""
    for model, step in loop.training(Within(Blocks()), count=STEPS):
        blocks_within(loop, model, step)


@kind(plain="error", plain_cause=UNFINISHED, three=True, needs=FINALIZED)
def within_other_blocks_on_each_rank(loop: Loop) -> None:
    """Each rank leaves other blocks out, and the optimizer steps after the forward."""
    for model, step in loop.training(Within(Blocks()), count=STEPS):
        blocks_within(loop, model, step, uneven(loop.rank, step))


@kind(plain="right")
def within_on_this_rank_alone(loop: Loop) -> None:
    """Nobody prepares DDP: gradients are averaged by hand, and a parameter that is not used keeps none."""
    blocks = Blocks()
    model = loop.wrap(Within(blocks))
    optimizer = sgd(model)

    def action(step: int) -> None:
        loss(blocks(loop.batch(step), (2,))).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= loop.size

    for step in loop.steps(STEPS):
        optimizer.zero_grad()
        step_within(loop, model, lambda s=step: action(s))  # type: ignore[misc]
        optimizer.step()


class Attacked(nn.Module):
    """A model whose forward moves its inputs against the gradient of a loss of its own, as in adversarial training."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss(self.blocks(x, (2,))).backward()
        assert x.grad is not None
        moved = (x + 0.1 * x.grad.sign()).detach()
        for parameter in self.parameters():
            parameter.grad = None
        output: torch.Tensor = self.blocks(moved)
        return output


@kind(plain="right", three=True)
def within_of_its_own(loop: Loop) -> None:
    """The forward runs a backward of its own, of some of the parameters, for which nobody prepares DDP."""
    for model, step in loop.training(Attacked(), count=STEPS, momentum=0.9):
        loss(model(loop.batch(step))).backward()


@kind(plain="error", plain_cause=UNFINISHED, needs=FINALIZED)
def within_now_and_then(loop: Loop) -> None:
    """Some steps have their backward within the forward, others after it."""
    for model, step in loop.training(Within(Blocks()), count=STEPS + 2):
        (blocks_after if step % 2 else blocks_within)(loop, model, step, uneven(loop.rank, step))


@kind(plain="error", plain_cause=UNFINISHED, needs=FINALIZED)
def within_after_usual_steps(loop: Loop) -> None:
    """Steps like most come first, so that outputs are only marked when the first backward runs within a forward."""
    for model, step in loop.training(Within(Blocks()), count=STEPS + 4):
        if step < 5:
            blocks_after(loop, model, step)
        else:
            blocks_within(loop, model, step, uneven(loop.rank, step))
