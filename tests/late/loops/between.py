"""What a loop does between two backwards of a model, or between its backward and the optimizer's step.

Each act stands in two programs: one whose model has two outputs with a backward each, which plain torch trains, and one
whose model leaves other blocks out on each rank, so that DDP's reduction still runs in plain torch when the act begins.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import distributed, nn

from tests.late.loops.kinds import add, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, uneven

Act = Callable[[Loop, Any, int], None]
CAUSE = "finished reduction|[Tt]imed out|Connection closed|op.preamble|size|bytes|mismatch|GLOO|gloo"


def two_heads(act: Act) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """Two outputs with a backward each, and something else in between and before the step."""
        model, other = loop.wrap(Apart(2)), loop.wrap(mlp())
        for step in loop.trained(model):
            first, second = model(loop.batch(step))
            loss(first).backward()
            act(loop, other, step)
            loss(second).backward()
            act(loop, other, step + 50)

    return train


def skipping(act: Act) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """Blocks left out, others on each rank, and something else between backward and step."""
        model, other = loop.wrap(Blocks()), loop.wrap(mlp())
        for step in loop.trained(model):
            loss(model(loop.batch(step), uneven(loop.rank, step))).backward()
            loop.sync(model)
            act(loop, other, step)

    return train


def other_steps(loop: Loop, other: Any, step: int) -> None:
    optimizer = sgd(other)
    optimizer.zero_grad()
    loss(other(loop.batch(step))).backward()
    loop.update(optimizer, other)


def all_reduce(loop: Loop, other: Any, step: int) -> None:
    distributed.all_reduce(loop.batch(step))


def other_is_wrapped(loop: Loop, other: Any, step: int) -> None:
    """A model is built and wrapped: DDP compares parameters and broadcasts them."""
    torch.nn.parallel.DistributedDataParallel(mlp())


for _act in (other_steps, all_reduce, other_is_wrapped):
    _three = _act in (all_reduce, other_steps)
    add(f"between_heads_{_act.__name__}", two_heads(_act), three=_three)
    add(f"between_skips_{_act.__name__}", skipping(_act), three=_three, plain="error", plain_cause=CAUSE)


@kind(plain="wrong", three=True)
def own_clipping_between_heads(loop: Loop) -> None:
    """Gradients are clipped after each of two backwards; plain torch writes what it averaged over the first."""
    for model, step in loop.training(Apart(2)):
        for output in model(loop.batch(step)):
            loss(output).backward()
            loop.sync(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.02)


@kind(plain="parts", three=True)
def own_step_between_heads(loop: Loop) -> None:
    """Each part has its own optimizer, which steps right after the part's backward, before the next one."""
    model = loop.wrap(Apart(2))
    optimizers = [sgd(part) for part in model.module.parts]
    for step in loop.steps():
        outputs = model(loop.batch(step))
        for output, optimizer in zip(outputs, optimizers):
            optimizer.zero_grad()
            loss(output).backward()
            loop.update(optimizer, model)
