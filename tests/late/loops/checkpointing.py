"""Activation checkpointing of both kinds, within the wrapped model and around it."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.late.loops.kinds import TWICE, UNFINISHED, add, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Blocks, loss, mlp, uneven


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
        model = loop.wrap(Checkpointed(reentrant))
        optimizer = sgd(model)
        for step in loop.steps():
            optimizer.zero_grad()
            for micro in range(2 if accumulate else 1):
                x = loop.batch(step, micro).requires_grad_()
                loss(model(x, uneven(loop.rank, step + micro) if skip else ())).backward()
                loop.sync(model)
            optimizer.step()

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

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.spare, self.reentrant = mlp(), mlp(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=self.reentrant)
        return self.spare(x)


def shared(reentrant: bool) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """One layer is checkpointed twice; each of its recomputations has a backward of its own if reentrant.

        DDP takes the first gradient for the whole one.
        """
        for model, step in loop.training(Twice(reentrant)):
            loss(model(loop.batch(step).requires_grad_())).backward()

    return train


add(
    "reentrant_layer_twice",
    shared(True),
    plain="parts",
    ours="either",
    cause="ddpfix:|" + TWICE,
    # What comes after DDP's own end is averaged apart, and rounded apart.
    close=1e-7,
)
add("non_reentrant_layer_twice", shared(False))


@kind(plain="error", plain_cause=UNFINISHED)
def offloaded(loop: Loop) -> None:
    """Saved tensors are kept elsewhere by ``saved_tensors_hooks``, blocks are left out."""
    model = loop.wrap(Blocks())

    def away(x: Any) -> Any:
        return x.clone()

    for step in loop.trained(model):
        with torch.autograd.graph.saved_tensors_hooks(away, away):
            value = loss(model(loop.batch(step), uneven(loop.rank, step)))
        value.backward()
