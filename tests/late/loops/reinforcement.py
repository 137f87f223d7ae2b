"""Reinforcement learning: several models, alternating optimizers, numbers that ranks exchange in between."""

from __future__ import annotations

import torch
from torch import nn

from tests.late.loops.kinds import kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, loss, mlp


@kind(three=True)
def sac(loop: Loop) -> None:
    """Two critics in one model with a backward each, and the temperature's optimizer steps in between."""
    critics, actor = loop.wrap(Apart(2)), loop.wrap(mlp())
    temperature = nn.Parameter(torch.zeros(()))
    of_c, of_a, of_t = sgd(critics), sgd(actor), torch.optim.SGD([temperature], lr=0.1)
    for step in loop.steps():
        x = loop.batch(step)
        of_c.zero_grad()
        first, second = critics(x)
        loss(first).backward()
        of_t.zero_grad()
        (temperature * loop.same(step).mean()).backward()
        of_t.step()
        loss(second).backward()
        loop.update(of_c, critics)
        of_a.zero_grad()
        one, two = critics(actor(x))
        (temperature.exp().detach() * loss(torch.minimum(one, two))).backward()
        loop.update(of_a, actor)


@kind(plain="error", plain_cause="finished reduction", three=True)
def td3_through_ddp(loop: Loop) -> None:
    """The actor's loss uses the first of two critics, through the wrapped model."""
    critics, actor = loop.wrap(Apart(2)), loop.wrap(mlp())
    of_c, of_a = sgd(critics), sgd(actor)
    for step in loop.steps():
        x = loop.batch(step)
        of_c.zero_grad()
        sum(loss(each) for each in critics(x)).backward()
        loop.update(of_c, critics)
        of_a.zero_grad()
        loss(critics(actor(x), [0])[0]).backward()
        loop.update(of_a, actor)


@kind()
def world_not_frozen(loop: Loop) -> None:
    """The actor learns through a wrapped world that is not frozen; the world's gradients are thrown away."""
    world, actor = loop.wrap(mlp()), loop.wrap(mlp())
    of_w, of_a = sgd(world), sgd(actor)
    for step in loop.steps():
        of_a.zero_grad()
        loss(world(actor(loop.batch(step)))).backward()
        loop.update(of_a, actor)
        of_w.zero_grad()
        (world(loop.batch(step, 1)) - 1).pow(2).mean().backward()
        loop.update(of_w, world)
