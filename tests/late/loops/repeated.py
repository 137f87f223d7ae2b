"""Loops whose first steps repeat each other, so that their models have no hooks, and of which a later one differs."""

from __future__ import annotations

from typing import Tuple

import torch

from tests.late.loops.kinds import TWICE, UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Aside, Blocks, Heads, loss, mlp, uneven

STEPS = 9
# The first step that is another one.
OTHER = 5


def unused(rank: int, step: int) -> Tuple[int, ...]:
    """Blocks that a rank leaves out."""
    return uneven(rank, step) if step >= OTHER else ()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def repeated_then_unused(loop: Loop) -> None:
    """All parameters are used in the first steps, and others on each rank in later ones."""
    for model, step in loop.training(Blocks(), count=STEPS):
        loss(model(loop.batch(step), unused(loop.rank, step))).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def repeated_then_unused_once(loop: Loop) -> None:
    """One rank leaves a block out in one step."""
    for model, step in loop.training(Blocks(), count=STEPS, momentum=0.9, to_none=False):
        loss(model(loop.batch(step), (2,) if step == OTHER and loop.rank == 1 else ())).backward()


@kind(plain="hangs", three=True)
def repeated_then_nothing_used(loop: Loop) -> None:
    """One rank uses no parameter in one step, whose backward leads through the output all the same."""
    for model, step in loop.training(Blocks(), count=STEPS):
        x = loop.batch(step).requires_grad_() * 1.0
        loss(model(x, range(4) if step == OTHER and loop.rank == 1 else ())).backward()


@kind(plain="hangs")
def repeated_then_nothing_used_in_place(loop: Loop) -> None:
    """The same where gradients are zeroed in place, between forward and backward."""
    model = loop.wrap(Blocks(), gradient_as_bucket_view=True)
    optimizer = sgd(model)
    for step in loop.steps(STEPS):
        x = loop.batch(step).requires_grad_() * 1.0
        output = model(x, range(4) if step == OTHER and loop.rank == 1 else ())
        optimizer.zero_grad(set_to_none=False)
        loss(output).backward()
        loop.update(optimizer, model)


@kind(plain="parts", three=True, close=1e-6)
def repeated_then_twice(loop: Loop) -> None:
    """An output has a second backward, whose gradients plain torch leaves on their rank."""
    for model, step in loop.training(Blocks(), count=STEPS):
        output = model(loop.batch(step))
        loss(output).backward(retain_graph=True)
        if step >= OTHER:
            (0.1 * loss(output)).backward()


@kind(plain="parts", ours="error", cause="ddpfix:|[Tt]imed out|Connection closed", traced=False)
def repeated_then_twice_on_ranks_in_turn(loop: Loop) -> None:
    """Each rank has a second backward once, in another step than the other rank: nothing of it can be averaged."""
    for model, step in loop.training(Blocks(), count=STEPS):
        value = loss(model(loop.batch(step)))
        value.backward(retain_graph=True)
        loop.sync(model)
        if step == OTHER + 2 * loop.rank:
            value.backward()


@kind(plain="error", plain_cause=TWICE, close=1e-6)
def repeated_then_one_backward_each(loop: Loop) -> None:
    """Heads are trained by one loss, and later by one each, over a common trunk."""
    for model, step in loop.training(Heads(), count=STEPS):
        one, other = model(loop.batch(step))
        if step < OTHER:
            (loss(one) + loss(other)).backward()
        else:
            loss(one).backward(retain_graph=True)
            loss(other).backward()


# The first step with two backwards is reduced after each of them, once.
@kind(three=True, counted=False)
def repeated_then_parts_in_turn(loop: Loop) -> None:
    """Parts that share nothing are trained by one loss, and later by one each: DDP completes in the last one."""
    for model, step in loop.training(Apart(), count=STEPS):
        outputs = model(loop.batch(step))
        if step < OTHER:
            sum(map(loss, outputs), torch.zeros(())).backward()
        else:
            for output in outputs:
                loss(output).backward()


@kind(three=True)
def repeated_beside_another_backward(loop: Loop) -> None:
    """A model that is not under DDP has a backward of its own, before and after that of the one that is."""
    model, other = loop.wrap(Blocks()), mlp()
    optimizer = sgd(model, other)
    for step in loop.trained(model, count=STEPS, optimizer=optimizer):
        output = model(loop.batch(step))
        if step in (OTHER, OTHER + 1):
            loss(other(loop.same(step))).backward()
        loss(output).backward()
        if step > OTHER:
            loss(other(loop.same(step, 1))).backward()


@kind(plain="error", plain_cause=UNFINISHED)
def repeated_then_unused_beside_another_backward(loop: Loop) -> None:
    """The same, and parameters are unused in the step in which the other backward comes first."""
    model, other = loop.wrap(Blocks()), mlp()
    optimizer = sgd(model, other)
    for step in loop.trained(model, count=STEPS, optimizer=optimizer):
        output = model(loop.batch(step), unused(loop.rank, step))
        if step >= OTHER:
            loss(other(loop.same(step))).backward()
        loss(output).backward()


@kind(plain="error", plain_cause=UNFINISHED)
def repeated_then_the_engine_by_hand(loop: Loop) -> None:
    """A later backward with unused parameters does not call torch.autograd.backward, which ddpfix has wrapped."""
    for model, step in loop.training(Blocks(), count=STEPS):
        value = loss(model(loop.batch(step), unused(loop.rank, step)))
        if step < OTHER:
            value.backward()
        else:
            engine = torch.autograd.Variable._execution_engine
            engine.run_backward((value,), (torch.ones(()),), False, False, (), True, True)


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def repeated_in_windows_then_unused(loop: Loop) -> None:
    """Gradients are accumulated under no_sync, and later some parameters are unused in both parts of a step."""
    for model, step in loop.training(Blocks(), count=STEPS):
        with model.no_sync():
            loss(model(loop.batch(step), unused(loop.rank, step))).backward()
        loss(model(loop.batch(step, 1), unused(loop.rank, step + 1))).backward()


@kind()
def repeated_with_forwards_between(loop: Loop) -> None:
    """Forwards with gradients that no backward follows, in training mode and not."""
    for model, step in loop.training(Blocks(), count=STEPS):
        if step >= OTHER:
            model(loop.batch(step, 2))
            model.eval()
            model(loop.batch(step, 3))
            model.train()
        loss(model(loop.batch(step))).backward()


@kind(plain="error", plain_cause=UNFINISHED, close=1e-6)
def repeated_then_a_loss_of_its_own(loop: Loop) -> None:
    """A model's own loss, which DDP does not see, has a backward of its own in later steps, or none."""
    for model, step in loop.training(Aside(), count=STEPS):
        value = loss(model(loop.batch(step)))
        own = model.module.own
        if step < OTHER:
            value = value + own
        value.backward()
        if step == OTHER:
            own.backward()


@kind(plain="error", plain_cause=UNFINISHED)
def repeated_then_another_model(loop: Loop) -> None:
    """A second model comes under DDP when the first one has trained for a while, and both leave blocks out."""
    model = loop.wrap(Blocks())
    optimizer, others = sgd(model), []
    for step in loop.steps(STEPS):
        optimizer.zero_grad()
        if step == OTHER:
            others.append(loop.wrap(Blocks()))
            optimizer.add_param_group({"params": list(others[0].parameters())})
        output = model(loop.batch(step), unused(loop.rank, step))
        for other in others:
            output = other(output, unused(loop.rank, step + 1))
        loss(output).backward()
        loop.update(optimizer, model, *others)
