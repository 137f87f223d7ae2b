"""Activation checkpointing of both kinds, within the wrapped model and around it."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from tests.late.loops.kinds import TWICE, UNFINISHED, add, kind
from tests.late.loops.loop import SIZE, Loop
from tests.late.loops.tiny_model import Blocks, loss, mlp, nothing, program, uneven


class Checkpointed(Blocks):
    """Each block is run again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor, skips: Sequence[int] = ()) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            if index not in skips:
                x = checkpoint(block, x, use_reentrant=self.reentrant).tanh()
        return x


def trained(reentrant: bool, skip: bool, accumulate: bool = False) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """Blocks are checkpointed; each rank may leave out its own ones."""
        for model, step in loop.training(Checkpointed(reentrant)):
            for micro in range(2 if accumulate else 1):
                x = loop.batch(step, micro).requires_grad_()
                loss(model(x, uneven(loop.rank, step + micro) if skip else ())).backward()
                loop.sync(model)

    return train


_STOCK = {"plain": "error", "plain_cause": UNFINISHED + "|" + TWICE}
add("reentrant_full", trained(True, False), three=True)
add("reentrant_skipping", trained(True, True), three=True, **_STOCK)
add("reentrant_accumulating_skipping", trained(True, True, True), **_STOCK)
add("non_reentrant_full", trained(False, False))
add("non_reentrant_skipping", trained(False, True), three=True, **_STOCK)


@kind(**_STOCK)
def steady_reentrant_skipping(loop: Loop) -> None:
    """The same blocks are left out in each step, others on each rank, behind reentrant checkpoints."""
    for model, step in loop.training(Checkpointed(True)):
        loss(model(loop.batch(step).requires_grad_(), (1 + loop.rank,))).backward()


def around(reentrant: bool) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """The wrapped model is itself called within a checkpoint: its forward runs again in backward."""
        head, model = mlp(), loop.wrap(Blocks())
        for step in loop.trained(model):
            x = loop.batch(step).requires_grad_()
            output = checkpoint(model, x, use_reentrant=reentrant)
            loss(head(output)).backward()

    return train


add("checkpoint_around_reentrant", around(True), counted=False)
add("checkpoint_around_non_reentrant", around(False), counted=False)


class Twice(nn.Module):
    """One layer is checkpointed twice, so that a reentrant backward comes to its parameters twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = mlp(), mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return self.spare(x)


# What comes after DDP's own end is averaged apart, and rounded apart.
@kind(plain="parts", ours="either", cause="ddpfix:|" + TWICE, close=1e-7)
def reentrant_layer_twice(loop: Loop) -> None:
    """One layer is checkpointed twice, and has two backwards: DDP takes the first gradient for the whole one."""
    for model, step in loop.training(Twice()):
        loss(model(loop.batch(step).requires_grad_())).backward()


class Halved(CheckpointFunction):  # type: ignore[misc]
    """A checkpoint of the user's own, whose backward returns half of the gradient."""

    @staticmethod
    def backward(context: Any, *slopes: Any) -> Any:
        found = CheckpointFunction.backward(context, *slopes)
        return tuple(each * 0.5 if isinstance(each, torch.Tensor) else each for each in found)


class Between(nn.Module):
    """A block that is checkpointed, reentrant, ``uses`` times in a forward, between two layers that are not."""

    def __init__(self, uses: int = 1, run: Any = None) -> None:
        super().__init__()
        self.first, self.last, self.uses = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), uses
        self.block = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Dropout(0.2), nn.Linear(SIZE, SIZE))
        self.run = run or (lambda block, x: checkpoint(block, x, use_reentrant=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(self.uses):
            x = self.run(self.block, x)
        return self.last(x)


# Plain torch ends these, and ddpfix says why.
_USED_TWICE = {
    "plain": "error",
    "plain_cause": TWICE,
    "ours": "error",
    "cause": f"(?s){TWICE}.* two reentrant checkpoints use .*, and each runs a backward.*use_reentrant=False",
}


@kind(**_USED_TWICE)
def reentrant_in_two_forwards(loop: Loop) -> None:
    """One module stands in a checkpoint of each of two forwards, which have one backward."""
    for model, step in loop.training(Between()):
        (model(loop.batch(step)) - model(loop.batch(step, 1))).pow(2).mean().backward()


@kind(**_USED_TWICE)
def reentrant_three_times(loop: Loop) -> None:
    """One module stands in three checkpoints of one forward, between layers that are in none."""
    for model, step in loop.training(Between(3)):
        loss(model(loop.batch(step))).backward()


# A static graph has DDP wait for the last of a module's backwards.
add("reentrant_twice_with_a_static_graph", program(lambda: Between(2), nothing, static_graph=True), "checkpointing")
# A checkpoint of the user's own, whose backward returns half of the gradient.
_halved = program(lambda: Between(run=lambda block, x: Halved.apply(block, True, x)), nothing)
add("reentrant_of_the_users_own", _halved, "checkpointing")
