"""Loops whose first steps repeat each other, and loops whose backwards run within the wrapper's own forward."""

from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple

import torch
from torch import nn

from tests.late.loops.kinds import TWICE, UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Aside, Blocks, Heads, loss, mlp, uneven

# First steps that repeat each other, so that their models have no hooks, and of which a later one differs.
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


# Backwards within the wrapper's own forward, where the program prepares DDP by hand. Lightning's manual optimization is
# such a loop: the training step is the wrapped module's forward.
FEW = 5
# Where torch's error stays before: DDP cannot be asked there whether it waits.
FINALIZED = ("2.1",)


class Within(nn.Module):
    """A module whose forward trains another one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module

    def forward(self, action: Callable[[], Any]) -> Any:
        return action()


def prepared(loop: Loop, model: Any, value: torch.Tensor) -> None:
    """A backward of which DDP reduces the gradients, as Lightning makes it."""
    if not loop.hand:
        model.reducer._rebuild_buckets()
        model.reducer.prepare_for_backward([])
    value.backward()
    loop.sync(model)


def step_within(loop: Loop, model: Any, action: Callable[[], Any]) -> None:
    """A forward of the wrapper that prepares nothing by itself."""
    model.require_backward_grad_sync = False
    model(action)
    model.require_backward_grad_sync = True


def blocks_after(loop: Loop, model: Any, step: int, skips: Sequence[int] = ()) -> None:
    """A usual step of blocks that are in a :class:`Within`."""
    loss(model(lambda: model.module.inner(loop.batch(step), skips))).backward()
    loop.sync(model)


def blocks_within(loop: Loop, model: Any, step: int, skips: Sequence[int] = ()) -> None:
    """The same with its backward within the forward."""
    step_within(loop, model, lambda: prepared(loop, model, loss(model.module.inner(loop.batch(step), skips))))


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.d = mlp(), mlp(1)


def train_pair(loop: Loop, model: Any, pair: Pair, optimizers: Tuple[Any, Any], x: torch.Tensor) -> None:
    """Train one part after the other, each with the other one frozen."""
    for part, other, optimizer in ((pair.g, pair.d, optimizers[0]), (pair.d, pair.g, optimizers[1])):
        for parameter in other.parameters():
            parameter.requires_grad_(False)
        optimizer.zero_grad()
        prepared(loop, model, loss(pair.d(pair.g(x))) * (1 if part is pair.g else -1))
        optimizer.step()
        for parameter in other.parameters():
            parameter.requires_grad_(True)


@kind(plain="error", plain_cause=UNFINISHED, three=True, needs=FINALIZED, theme="within")
def within_pair(loop: Loop) -> None:
    """A generator and a discriminator in one wrapper, trained by Lightning's manual optimization."""
    pair = Pair()
    model = loop.wrap(Within(pair))
    optimizers = sgd(pair.g), sgd(pair.d, momentum=0.9)
    for step in loop.steps(FEW):
        step_within(loop, model, lambda s=step: train_pair(loop, model, pair, optimizers, loop.batch(s)))  # type: ignore[misc]


@kind(plain="right", three=True, theme="within")
def within_all_used(loop: Loop) -> None:
    """One backward within the forward, of every parameter."""
    for model, step in loop.training(Within(Blocks()), count=FEW):
        blocks_within(loop, model, step)


@kind(plain="error", plain_cause=UNFINISHED, three=True, needs=FINALIZED, theme="within")
def within_other_blocks_on_each_rank(loop: Loop) -> None:
    """Each rank leaves other blocks out, and the optimizer steps after the forward."""
    for model, step in loop.training(Within(Blocks()), count=FEW):
        blocks_within(loop, model, step, uneven(loop.rank, step))


@kind(plain="right", theme="within")
def within_on_this_rank_alone(loop: Loop) -> None:
    """Nobody prepares DDP: gradients are averaged by hand, and a parameter that is not used keeps none."""
    blocks = Blocks()
    model = loop.wrap(Within(blocks))
    optimizer = sgd(model)

    def action(step: int) -> None:
        loss(blocks(loop.batch(step), (2,))).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= loop.size

    for step in loop.steps(FEW):
        optimizer.zero_grad()
        step_within(loop, model, lambda s=step: action(s))  # type: ignore[misc]
        optimizer.step()


class Attacked(nn.Module):
    """A model whose forward moves its inputs against the gradient of a loss of its own, as in adversarial training."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss(self.blocks(x, (2,))).backward()
        assert x.grad is not None
        moved = (x + 0.1 * x.grad.sign()).detach()
        for parameter in self.parameters():
            parameter.grad = None
        output: torch.Tensor = self.blocks(moved)
        return output


@kind(plain="right", three=True, theme="within")
def within_of_its_own(loop: Loop) -> None:
    """The forward runs a backward of its own, of some of the parameters, for which nobody prepares DDP."""
    for model, step in loop.training(Attacked(), count=FEW, momentum=0.9):
        loss(model(loop.batch(step))).backward()


@kind(plain="error", plain_cause=UNFINISHED, needs=FINALIZED, theme="within")
def within_now_and_then(loop: Loop) -> None:
    """Some steps have their backward within the forward, others after it."""
    for model, step in loop.training(Within(Blocks()), count=FEW + 2):
        (blocks_after if step % 2 else blocks_within)(loop, model, step, uneven(loop.rank, step))


@kind(plain="error", plain_cause=UNFINISHED, needs=FINALIZED, theme="within")
def within_after_usual_steps(loop: Loop) -> None:
    """Steps like most come first, so that outputs are only marked when the first backward runs within a forward."""
    for model, step in loop.training(Within(Blocks()), count=FEW + 4):
        if step < 5:
            blocks_after(loop, model, step)
        else:
            blocks_within(loop, model, step, uneven(loop.rank, step))
