"""Activation checkpointing of both kinds, within the wrapped model and around it."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.late.loops.kinds import TWICE, UNFINISHED, add, kind
from tests.late.loops.loop import Loop
from tests.late.loops.tiny_model import Blocks, loss, mlp, sgd, uneven


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


def around(reentrant: bool) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """The wrapped model is itself called within a checkpoint: its forward runs again in backward."""
        head, model = mlp(), loop.wrap(Blocks())
        optimizer = sgd(model)
        for step in loop.steps():
            optimizer.zero_grad()
            x = loop.batch(step).requires_grad_()
            output = checkpoint(model, x, use_reentrant=reentrant)
            loss(head(output)).backward()
            loop.sync(model)
            optimizer.step()

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
        model = loop.wrap(Twice(reentrant))
        optimizer = sgd(model)
        for step in loop.steps():
            optimizer.zero_grad()
            loss(model(loop.batch(step).requires_grad_())).backward()
            loop.sync(model)
            optimizer.step()

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
    optimizer = sgd(model)

    def away(x: Any) -> Any:
        return x.clone()

    for step in loop.steps():
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(away, away):
            value = loss(model(loop.batch(step), uneven(loop.rank, step)))
        value.backward()
        loop.sync(model)
        optimizer.step()
