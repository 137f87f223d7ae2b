"""Reinforcement learning: several models, alternating optimizers, numbers that ranks exchange in between."""

from __future__ import annotations

import copy

import torch
from torch import distributed, nn

from tests.late.loops.kinds import TWICE, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Heads, loss, mlp


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


@kind()
def td3(loop: Loop) -> None:
    """The actor learns every second step through the first critic alone; targets follow slowly."""
    critics, actor = loop.wrap(Apart(2)), loop.wrap(mlp())
    target = copy.deepcopy(critics.module)
    of_c, of_a = sgd(critics), sgd(actor)
    for step in loop.steps():
        x = loop.batch(step)
        with torch.no_grad():
            wanted = torch.minimum(*target(x)) * 0.9
        of_c.zero_grad()
        one, two = critics(x)
        ((one - wanted).pow(2).mean() + (two - wanted).pow(2).mean()).backward()
        loop.update(of_c, critics)
        if step % 2:
            of_a.zero_grad()
            loss(critics.module.parts[0](actor(x))).backward()
            loop.update(of_a, actor)
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critics.module.parameters()):
                slow.lerp_(fast, 0.1)


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


@kind(plain="error", plain_cause=TWICE)
def actor_critic_retained(loop: Loop) -> None:
    """A policy's and a value's loss have a backward each, through a trunk that they share."""
    for model, step in loop.training(Heads()):
        policy, value = model(loop.batch(step))
        loss(policy).backward(retain_graph=True)
        loop.sync(model)
        loss(value).backward()


@kind(three=True)
def ppo(loop: Loop) -> None:
    """A rollout without gradients, advantages that all ranks normalize together, and epochs that stop when KL says."""
    model = loop.wrap(Heads())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in loop.steps(3):
        with torch.no_grad():
            old, value = model(loop.batch(step))
        mean = value.mean()
        distributed.all_reduce(mean)
        for epoch in range(3):
            optimizer.zero_grad()
            policy, guess = model(loop.batch(step))
            change = (policy - old).pow(2).mean()
            change_now = change.detach().clone()
            distributed.all_reduce(change_now)
            if float(change_now) > 0.05 * loop.size:
                break
            (loss(policy) + change + (guess - mean / loop.size + epoch).pow(2).mean()).backward()
            loop.sync(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


@kind()
def dreamer(loop: Loop) -> None:
    """A world model, an actor that learns through the frozen world, and a critic: three optimizers a step."""
    world, actor, critic = (loop.wrap(mlp()) for _ in range(3))
    optimizers = [sgd(each) for each in (world, actor, critic)]
    for step in loop.steps():
        x = loop.batch(step)
        optimizers[0].zero_grad()
        state = world(x)
        (state - x.roll(1, 0)).pow(2).mean().backward()
        loop.update(optimizers[0], world)
        world.requires_grad_(False)
        optimizers[1].zero_grad()
        dream = world(actor(state.detach()))
        loss(critic.module(dream)).backward()
        loop.update(optimizers[1], actor)
        world.requires_grad_(True)
        optimizers[2].zero_grad()
        loss(critic(dream.detach())).backward()
        loop.update(optimizers[2], critic)


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


@kind(plain="error", plain_cause="finished reduction", three=True)
def episodes_of_different_length(loop: Loop) -> None:
    """REINFORCE: ranks sum losses over as many calls as their episode is long; a rare action's head is used by some."""
    for model, step in loop.training(Heads(3)):
        total = torch.zeros(())
        for time in range(1 + (step + loop.rank) % 2):
            total = total + loss(model(loop.batch(step, time), [0, 1 + (step + loop.rank) % 2])[-1])
        total.backward()
