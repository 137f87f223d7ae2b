"""What loops do with gradients between backward and the optimizer's step.

Each act stands in a program whose model uses all of its parameters, and in one that leaves blocks out. Random loops
have more of them (``BETWEEN`` of :mod:`tests.harm.loops.plan`).
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from tests.late.loops.kinds import TWICE, UNFINISHED, add, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Blocks, loss, uneven

Act = Callable[[Loop, Any, int], None]


def program(act: Act, skip: bool) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """All parameters are used, or each rank leaves other blocks out; gradients are handled before the step."""
        for model, step in loop.training(Blocks()):
            loss(model(loop.batch(step), uneven(loop.rank, step) if skip else ())).backward()
            loop.sync(model)
            act(loop, model, step)

    return train


def dropped(loop: Loop, model: Any, step: int) -> None:
    model.module.blocks[step % 4].weight.grad = None


def by_hand(loop: Loop, model: Any, step: int) -> None:
    """The update is written by hand, and the optimizer finds nothing."""
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
                p.grad = None


for _act in (dropped, by_hand):
    add(f"{_act.__name__}_full", program(_act, False), three=True)
    add(f"{_act.__name__}_skipping", program(_act, True), three=True, plain="error", plain_cause=UNFINISHED)


@kind(three=True)
def pcgrad(loop: Loop) -> None:
    """Gradient surgery: ``autograd.grad`` for each task, averaged by the user; DDP never sees a backward."""
    model = loop.wrap(Blocks())
    optimizer, parameters = sgd(model), list(model.parameters())
    for step in loop.steps():
        output = model(loop.batch(step))
        one, other = (
            torch.autograd.grad(value, parameters, retain_graph=True) for value in (loss(output), output.abs().mean())
        )
        dot = sum(float((a * b).sum()) for a, b in zip(one, other))
        for p, a, b in zip(parameters, one, other):
            p.grad = a - 0.5 * b if dot < 0 else a + b
            torch.distributed.all_reduce(p.grad)
            p.grad /= loop.size
        optimizer.step()


@kind()
def gradient_penalty_on_parameters(loop: Loop) -> None:
    """``autograd.grad`` for parameters with create_graph, whose norm is a part of the loss."""
    for model, step in loop.training(Blocks(2)):
        value = loss(model(loop.batch(step)))
        slopes = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
        (value + 0.1 * sum(slope.pow(2).sum() for slope in slopes)).backward()


@kind()
def regularized_afterwards(loop: Loop) -> None:
    """Weight decay has a backward of its own after the main one; it is the same on all ranks."""
    for model, step in loop.training(Blocks()):
        loss(model(loop.batch(step))).backward()
        loop.sync(model)
        (0.01 * sum(p.pow(2).sum() for p in model.parameters())).backward()


@kind(plain="error", plain_cause=UNFINISHED + "|" + TWICE, three=True)
def regularized_afterwards_skipping(loop: Loop) -> None:
    """The same with blocks left out: the second backward brings what DDP waits for, and other parameters again."""
    for model, step in loop.training(Blocks()):
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()
        loop.sync(model)
        (0.01 * sum(p.pow(2).sum() for p in model.parameters())).backward()


@kind(three=True)
def regularized_before(loop: Loop) -> None:
    """Weight decay has its backward before the forward: DDP is not armed yet, and averages the sum later."""
    for model, step in loop.training(Blocks()):
        (0.01 * sum(p.pow(2).sum() for p in model.parameters())).backward()
        loss(model(loop.batch(step))).backward()
