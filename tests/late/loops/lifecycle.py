"""What happens around a model's steps: evaluation, freezing, layers that come and go, ddpfix that comes and goes."""

from __future__ import annotations

import contextlib
from typing import Any, Callable

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook

from tests.late.loops.kinds import UNFINISHED, add, kind
from tests.late.loops.loop import SIZE, Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, uneven


@kind(three=True)
def evaluation_with_gradients(loop: Loop) -> None:
    """A forward in eval mode with gradients enabled, whose output is dropped, before each step."""
    for model, step in loop.training(mlp()):
        model.eval()
        model(loop.batch(step, 1))
        model.train()
        loss(model(loop.batch(step))).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def trained_in_eval_mode(loop: Loop) -> None:
    """The whole training runs in eval mode (frozen statistics), and leaves blocks out."""
    model = loop.wrap(Blocks())
    model.eval()
    for step in loop.trained(model):
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()


@kind(three=True)
def frozen_before(loop: Loop) -> None:
    """Parameters are frozen before wrapping."""
    module = Blocks()
    module.blocks[1].requires_grad_(False)
    model = loop.wrap(module)
    for step in loop.trained(model):
        loss(model(loop.batch(step))).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def frozen_in_turn(loop: Loop) -> None:
    """Blocks that DDP knows are frozen and set free again, another one in each step, from the top."""
    for model, step in loop.training(Blocks(), count=5):
        for number, block in enumerate(model.module.blocks):
            block.requires_grad_(number != step % 4)
        loss(model(loop.batch(step))).backward()


@kind(plain="parts", ours="plain", cause="ddpfix.*blocks.1")
def set_free_after_wrapping(loop: Loop) -> None:
    """A block is set free that is in no bucket, as DDP was built while it was frozen: replicas drift."""
    module = Blocks()
    module.blocks[1].requires_grad_(False)
    model = loop.wrap(module)
    for step in loop.trained(model):
        if step == 2:
            model.module.blocks[1].requires_grad_(True)
        loss(model(loop.batch(step))).backward()


@kind(plain="error", plain_cause=UNFINISHED, ours="error", cause="ddpfix:.*blocks.1")
def layer_replaced(loop: Loop) -> None:
    """A block is replaced after wrapping. To mark the old one as ready would let replicas part in silence."""
    model = loop.wrap(Blocks())
    model.module.blocks[1] = nn.Linear(SIZE, SIZE)
    for step in loop.trained(model):
        loss(model(loop.batch(step))).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def layer_removed(loop: Loop) -> None:
    """Pruning: a block is taken out of the model after two steps; DDP still waits for it."""
    for model, step in loop.training(Blocks(), count=5):
        if step == 2:
            model.module.blocks[1] = nn.Identity()
        loss(model(loop.batch(step))).backward()


@kind(activated=False, three=True)
def activated_late(loop: Loop) -> None:
    """ddpfix is switched on after the model was wrapped and trained."""
    for model, step in loop.training(Apart(2)):
        if step == 2:
            loop.activate()
        for output in model(loop.batch(step)):
            loss(output).backward()


@kind(activated=False, plain="error", plain_cause=UNFINISHED, ours="plain")
def activated_late_skipping(loop: Loop) -> None:
    """ddpfix is switched on after the model was wrapped, which leaves blocks out: it is left to torch's error."""
    model = loop.wrap(Blocks())
    loop.activate()
    for step in loop.trained(model):
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()


def deactivated(when: str, again: bool = False) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """ddpfix is switched off in the third step of a loop with two backwards; it may be on again a step later."""
        model = loop.wrap(Apart(2))
        optimizer = sgd(model)
        for step in loop.steps(5):
            optimizer.zero_grad()
            first, second = model(loop.batch(step))
            for now, output in (("after_forward", first), ("between_backwards", second)):
                if step == 2 and when == now:
                    loop.deactivate()
                loss(output).backward()
            loop.update(optimizer, model)
            if step == 2 and when == "between_steps":
                loop.deactivate()
            if step == 3 and again:
                loop.activate()

    return train


for _when in ("after_forward", "between_backwards", "between_steps"):
    add(f"deactivated_{_when}", deactivated(_when), counted=False)
add("deactivated_and_activated", deactivated("between_backwards", again=True), counted=False)


@kind(plain="error", plain_cause=UNFINISHED, ours="plain")
def deactivated_skipping(loop: Loop) -> None:
    """ddpfix is switched off between forward and backward: the model is torch's from here, whose error stands."""
    for model, step in loop.training(Blocks(), count=5):
        value = loss(model(loop.batch(step), uneven(loop.rank, step)))
        if step == 2:
            loop.deactivate()
        value.backward()


@kind(counted=False)
def hook_later(loop: Loop) -> None:
    """A communication hook that averages is registered after the first steps."""
    model = loop.wrap(Apart(2))
    for step in loop.trained(model):
        if step == 2:
            model.register_comm_hook(None, allreduce_hook)
        for output in model(loop.batch(step)):
            loss(output).backward()


@kind(plain="error", plain_cause=UNFINISHED, close=1e-4)
def hook_compresses_skipping(loop: Loop) -> None:
    """Gradients travel as half precision, blocks are left out."""
    model = loop.wrap(Blocks())
    model.register_comm_hook(None, fp16_compress_hook)
    for step in loop.trained(model):
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()


@kind(plain="error", plain_cause=UNFINISHED + "|[Tt]imed out|Connection")
def joined_skipping(loop: Loop) -> None:
    """``join``: rank 1 has two batches more, and blocks are left out."""
    model = loop.wrap(Blocks())
    optimizer = sgd(model)
    context: Any = contextlib.nullcontext() if loop.hand else model.join()
    # Rank 1 has two batches more; who has none adds zero to a mean over all ranks.
    most = 5
    for _ in loop.steps(1):
        with context:
            for step in range(most if loop.hand or loop.rank else 3):
                optimizer.zero_grad()
                if loop.rank or step < 3:
                    loss(model(loop.batch(step), uneven(loop.rank, step))).backward()
                loop.update(optimizer, model)
