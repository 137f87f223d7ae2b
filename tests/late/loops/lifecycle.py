"""What happens around a model's steps: evaluation, freezing, copies, layers and ddpfix that come and go."""

from __future__ import annotations

import contextlib
import copy
import pickle
from typing import Any, Callable

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook

from tests.late.loops.kinds import UNFINISHED, add, kind
from tests.late.loops.loop import SIZE, Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, nothing, uneven, usual


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
    usual(loop, model.eval())


@kind(three=True)
def frozen_before(loop: Loop) -> None:
    """Parameters are frozen before wrapping."""
    module = Blocks()
    module.blocks[1].requires_grad_(False)
    usual(loop, loop.wrap(module), nothing)


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
    usual(loop, model, nothing)


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
    usual(loop, model)


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
    usual(loop, model)


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


# Copies of models, wrapped or not, and models that are wrapped again.


def train(loop: Loop, model: Any, count: int, skip: bool, shift: int = 0) -> None:
    for step in loop.trained(model, count=count):
        loss(model(loop.batch(step + shift), uneven(loop.rank, step) if skip else ())).backward()


def _copied(loop: Loop, skip: bool) -> None:
    model = loop.wrap(Blocks())
    if not skip:
        train(loop, model, 2, skip)
    other = copy.deepcopy(model)
    loop.track(other)
    train(loop, other, 3, skip, 10)
    train(loop, model, 2, skip, 20)


@kind(counted=False, theme="copies")
def copy_is_trained(loop: Loop) -> None:
    """A deep copy of the wrapped model is trained, and then the original again."""
    _copied(loop, False)


@kind(plain="error", plain_cause=UNFINISHED, three=True, theme="copies")
def copy_is_trained_skipping(loop: Loop) -> None:
    """A deep copy of the wrapped model is trained before the original, both leave blocks out."""
    _copied(loop, True)


def _pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


@kind(plain="error", plain_cause=UNFINISHED, theme="copies")
def pickled_and_trained_skipping(loop: Loop) -> None:
    """The wrapped model goes through pickle, and what comes back is trained; blocks are left out from the start."""
    model = _pickled(loop.wrap(Blocks()))
    loop.track(model)
    train(loop, model, 3, True)


@kind(plain="error", plain_cause=UNFINISHED, theme="copies")
def wrapped_again_and_kept(loop: Loop) -> None:
    """The module is wrapped anew every two steps, and old wrappers, whose reducers have hooks on it, are kept."""
    module, kept = Blocks(), []
    for turn in range(3):
        kept.append(loop.wrap(module))
        train(loop, kept[-1], 2, True, 10 * turn)


@kind(counted=False, three=True, theme="copies")
def wrapped_twice(loop: Loop) -> None:
    """Two wrappers of one module, used in turn: both reducers have hooks on the same parameters."""
    module = Blocks()
    models = [loop.wrap(module), loop.wrap(module)]
    for step in loop.trained(models[0]):
        loss(models[step % 2](loop.batch(step))).backward()
