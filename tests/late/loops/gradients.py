"""What loops do with gradients: they handle and accumulate them, and run something else in between."""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import torch
from torch import distributed, nn

from tests.late.loops.kinds import TWICE, UNFINISHED, add, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, Heads, loss, mlp, uneven

Act = Callable[[Loop, Any, int], None]
# Between backward and the optimizer's step. Each act stands in a program whose model uses all of its parameters, and in
# one that leaves blocks out. Random loops have more of them (``BETWEEN`` of :mod:`tests.harm.loops.plan`).


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


def regularized_afterwards(loop: Loop, model: Any, step: int) -> None:
    """Weight decay has a backward of its own: it brings what DDP waits for, and other parameters again."""
    (0.01 * sum(p.pow(2).sum() for p in model.parameters())).backward()


for _act in (dropped, by_hand, regularized_afterwards):
    _cause = UNFINISHED + ("|" + TWICE if _act is regularized_afterwards else "")
    add(f"{_act.__name__}_full", program(_act, False), three=True)
    add(f"{_act.__name__}_skipping", program(_act, True), three=True, plain="error", plain_cause=_cause)


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


@kind(three=True)
def regularized_before(loop: Loop) -> None:
    """Weight decay has its backward before the forward: DDP is not armed yet, and averages the sum later."""
    for model, step in loop.training(Blocks()):
        (0.01 * sum(p.pow(2).sum() for p in model.parameters())).backward()
        loss(model(loop.batch(step))).backward()


# Several micro-batches in one step.


@kind(plain="error", plain_cause=UNFINISHED, three=True, theme="accumulation")
def without_no_sync_skipping(loop: Loop) -> None:
    """Every micro-batch is averaged with what there is already; each leaves other blocks out, others on each rank."""
    for model, step in loop.training(Blocks()):
        for micro in range(3):
            loss(model(loop.batch(step, micro), uneven(loop.rank, step + micro))).backward()
            loop.sync(model)


@kind(plain="error", plain_cause=UNFINISHED, three=True, theme="accumulation")
def no_sync_skipping(loop: Loop) -> None:
    """What a rank used in micro-batches under no_sync is averaged even if the last one leaves it out."""
    for model, step in loop.training(Blocks(), momentum=0.9):
        for micro in range(3):
            with model.no_sync() if micro < 2 else contextlib.nullcontext():
                skips = uneven(loop.rank, step) if micro == 2 else ()
                loss(model(loop.batch(step, micro), skips)).backward()


@kind(theme="accumulation")
def no_sync_around_backward(loop: Loop) -> None:
    """no_sync around backward only: DDP looks at it in the forward, so that every micro-batch is averaged."""
    for model, step in loop.training(mlp()):
        for micro in range(2):
            value = loss(model(loop.batch(step, micro)))
            with model.no_sync() if micro < 1 else contextlib.nullcontext():
                value.backward()
            loop.sync(model)


@kind(plain="parts", ours="plain", theme="accumulation")
def forward_under_no_sync(loop: Loop) -> None:
    """The forward stands under no_sync, its backward outside: by DDP's documentation the forward is what counts."""
    for model, step in loop.training(mlp()):
        with model.no_sync():
            value = loss(model(loop.batch(step)))
        value.backward()


@kind(theme="accumulation")
def other_counts_on_each_rank(loop: Loop) -> None:
    """Ranks have different numbers of micro-batches under no_sync."""
    for model, step in loop.training(mlp()):
        with model.no_sync():
            for micro in range((step + loop.rank) % 3):
                loss(model(loop.batch(step, micro))).backward()
        loss(model(loop.batch(step, 9))).backward()


@kind(three=True, theme="accumulation")
def heads_under_no_sync(loop: Loop) -> None:
    """Two outputs with a backward each, in micro-batches."""
    for model, step in loop.training(Apart(2)):
        for micro in range(2):
            with model.no_sync() if micro < 1 else contextlib.nullcontext():
                for output in model(loop.batch(step, micro)):
                    loss(output).backward()


@kind(plain="error", plain_cause=TWICE, theme="accumulation")
def first_loss_under_no_sync(loop: Loop) -> None:
    """The first of two losses has its backward under no_sync, to spare a reduction; the forward stands outside."""
    for model, step in loop.training(Heads()):
        first, second = model(loop.batch(step))
        with model.no_sync():
            loss(first).backward(retain_graph=True)
        loop.sync(model)
        loss(second).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True, theme="accumulation")
def bucket_views_skipping(loop: Loop) -> None:
    """Gradients are views of buckets, blocks are left out, micro-batches under no_sync."""
    model = loop.wrap(Blocks(), gradient_as_bucket_view=True)
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        with model.no_sync():
            loss(model(loop.batch(step))).backward()
        loss(model(loop.batch(step, 1), uneven(loop.rank, step))).backward()
        loop.update(optimizer, model)


@kind(three=True, theme="accumulation")
def bucket_views(loop: Loop) -> None:
    """Gradients are views of buckets, two outputs have a backward each, gradients are zeroed in place."""
    for model, step in loop.training(Apart(2), to_none=False, gradient_as_bucket_view=True):
        for output in model(loop.batch(step)):
            loss(output).backward()


# Between two backwards of a model, or between its backward and the optimizer's step. Each act stands in two programs:
# one whose model has two outputs with a backward each, which plain torch trains, and one whose model leaves other
# blocks out on each rank, so that DDP's reduction still runs in plain torch when the act begins.
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


for _between in (other_steps, all_reduce, other_is_wrapped):
    _three, _name = _between in (all_reduce, other_steps), _between.__name__
    add(f"between_heads_{_name}", two_heads(_between), "between", three=_three)
    add(f"between_skips_{_name}", skipping(_between), "between", three=_three, plain="error", plain_cause=CAUSE)


@kind(plain="wrong", three=True, theme="between")
def own_clipping_between_heads(loop: Loop) -> None:
    """Gradients are clipped after each of two backwards; plain torch writes what it averaged over the first."""
    for model, step in loop.training(Apart(2)):
        for output in model(loop.batch(step)):
            loss(output).backward()
            loop.sync(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.02)


@kind(plain="parts", three=True, theme="between")
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
