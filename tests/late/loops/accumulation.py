"""Gradients of several micro-batches in one step."""

from __future__ import annotations

import contextlib

from tests.late.loops.kinds import TWICE, UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, Heads, loss, mlp, uneven


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def without_no_sync_skipping(loop: Loop) -> None:
    """Every micro-batch is averaged with what there is already; each leaves other blocks out, others on each rank."""
    for model, step in loop.training(Blocks()):
        for micro in range(3):
            loss(model(loop.batch(step, micro), uneven(loop.rank, step + micro))).backward()
            loop.sync(model)


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def no_sync_skipping(loop: Loop) -> None:
    """What a rank used in micro-batches under no_sync is averaged even if the last one leaves it out."""
    for model, step in loop.training(Blocks(), momentum=0.9):
        for micro in range(3):
            with model.no_sync() if micro < 2 else contextlib.nullcontext():
                skips = uneven(loop.rank, step) if micro == 2 else ()
                loss(model(loop.batch(step, micro), skips)).backward()


@kind()
def no_sync_around_backward(loop: Loop) -> None:
    """no_sync around backward only: DDP looks at it in the forward, so that every micro-batch is averaged."""
    for model, step in loop.training(mlp()):
        for micro in range(2):
            value = loss(model(loop.batch(step, micro)))
            with model.no_sync() if micro < 1 else contextlib.nullcontext():
                value.backward()
            loop.sync(model)


@kind(plain="parts", ours="plain")
def forward_under_no_sync(loop: Loop) -> None:
    """The forward stands under no_sync, its backward outside: by DDP's documentation the forward is what counts."""
    for model, step in loop.training(mlp()):
        with model.no_sync():
            value = loss(model(loop.batch(step)))
        value.backward()


@kind()
def other_counts_on_each_rank(loop: Loop) -> None:
    """Ranks have different numbers of micro-batches under no_sync."""
    for model, step in loop.training(mlp()):
        with model.no_sync():
            for micro in range((step + loop.rank) % 3):
                loss(model(loop.batch(step, micro))).backward()
        loss(model(loop.batch(step, 9))).backward()


@kind(three=True)
def heads_under_no_sync(loop: Loop) -> None:
    """Two outputs with a backward each, in micro-batches."""
    for model, step in loop.training(Apart(2)):
        for micro in range(2):
            with model.no_sync() if micro < 1 else contextlib.nullcontext():
                for output in model(loop.batch(step, micro)):
                    loss(output).backward()


@kind(plain="error", plain_cause=TWICE)
def first_loss_under_no_sync(loop: Loop) -> None:
    """The first of two losses has its backward under no_sync, to spare a reduction; the forward stands outside."""
    for model, step in loop.training(Heads()):
        first, second = model(loop.batch(step))
        with model.no_sync():
            loss(first).backward(retain_graph=True)
        loop.sync(model)
        loss(second).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
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


@kind(three=True)
def bucket_views(loop: Loop) -> None:
    """Gradients are views of buckets, two outputs have a backward each, gradients are zeroed in place."""
    model = loop.wrap(Apart(2), gradient_as_bucket_view=True)
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad(set_to_none=False)
        for output in model(loop.batch(step)):
            loss(output).backward()
        loop.update(optimizer, model)
