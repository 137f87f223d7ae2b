"""What loops do with gradients between backward and the optimizer's step.

Each act stands in a program whose model uses all of its parameters, and in one that leaves blocks out.
"""

from __future__ import annotations

from typing import Any, Callable, List

import torch
from torch import nn

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


def grads(model: Any) -> List[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def clip_norm(loop: Loop, model: Any, step: int) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def total_norm(loop: Loop, model: Any, step: int) -> None:
    norm = nn.utils.get_total_norm(grads(model))
    nn.utils.clip_grads_with_norm_(model.parameters(), 0.05, norm)


def finite_or_skipped(loop: Loop, model: Any, step: int) -> None:
    if step == 1 or not all(bool(torch.isfinite(each).all()) for each in grads(model)):
        model.zero_grad()


def dropped(loop: Loop, model: Any, step: int) -> None:
    model.module.blocks[step % 4].weight.grad = None


def replaced(loop: Loop, model: Any, step: int) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad = p.grad.sign() * 0.01


def noised(loop: Loop, model: Any, step: int) -> None:
    torch.manual_seed(step)
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad.add_(torch.randn_like(p), alpha=0.01)


def by_hand(loop: Loop, model: Any, step: int) -> None:
    """The update is written by hand, and the optimizer finds nothing."""
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
                p.grad = None


def through_data(loop: Loop, model: Any, step: int) -> None:
    """An update that autograd's counts of writes do not see."""
    for p in model.parameters():
        if p.grad is not None:
            p.data.add_(p.grad.data, alpha=-0.1)
            p.grad.data.zero_()


ACTS = {
    clip_norm: (),
    total_norm: ("torch.nn.utils.get_total_norm",),
    finite_or_skipped: (),
    dropped: (),
    replaced: (),
    noised: (),
    by_hand: (),
    through_data: (),
}
for _act, _needs in ACTS.items():
    _three = _act in (clip_norm, by_hand, total_norm, dropped)
    add(f"{_act.__name__}_full", program(_act, False), needs=_needs, three=_three)
    add(
        f"{_act.__name__}_skipping",
        program(_act, True),
        needs=_needs,
        three=_three,
        plain="error",
        plain_cause=UNFINISHED,
    )


@kind(plain="error", plain_cause=UNFINISHED)
def hooks_on_parameters_skipping(loop: Loop) -> None:
    """Hooks that are set after wrapping and expect a gradient, on a model that leaves blocks out."""
    model = loop.wrap(Blocks())
    seen: List[float] = []

    def look(slope: torch.Tensor) -> torch.Tensor:
        seen.append(float(slope.abs().max()))
        return slope.clamp(-0.02, 0.02)

    for p in model.parameters():
        p.register_hook(look)
    for step in loop.trained(model):
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()
    assert seen


@kind(three=True)
def pcgrad(loop: Loop) -> None:
    """Gradient surgery: ``autograd.grad`` for each task, conflicts taken out, then averaged by the user.

    DDP never sees a backward.
    """
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


@kind(plain="error", plain_cause="", ours="either", cause="ddpfix:|" + UNFINISHED + "|in-place|inplace|ready")
def backward_that_creates_a_graph(loop: Loop) -> None:
    """``backward(create_graph=True)``, and a second backward of the gradients' norm.

    DDP does not carry graphs through its buckets, as its documentation says: what the second backward differentiates
    is each rank's own.
    """
    for model, step in loop.training(Blocks(2)):
        loss(model(loop.batch(step))).backward(create_graph=True)
        norm = sum(each.pow(2).sum() for each in grads(model))
        loop.sync(model)
        (0.1 * norm).backward()


@kind()
def unused_but_regularized(loop: Loop) -> None:
    """Weight decay in the loss reaches all parameters, also of blocks that are left out."""
    for model, step in loop.training(Blocks()):
        decay = sum(p.pow(2).sum() for p in model.parameters())
        (loss(model(loop.batch(step), uneven(loop.rank, step))) + 0.01 * decay).backward()


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
