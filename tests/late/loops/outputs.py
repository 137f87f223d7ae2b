"""Models with several outputs, losses that use some of them, and outputs that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Sequence

import torch
from torch import nn

from tests.late.loops.kinds import TWICE, UNFINISHED, kind
from tests.late.loops.loop import SIZE, Loop, sgd
from tests.late.loops.tiny_model import Apart, Aside, Blocks, Heads, loss, mlp, uneven


@kind(plain="error", plain_cause=TWICE, three=True)
def shared_trunk_retained(loop: Loop) -> None:
    """Two heads with a backward each through a trunk that they share, whose graph is retained."""
    for model, step in loop.training(Heads(), momentum=0.9):
        first, second = model(loop.batch(step))
        loss(first).backward(retain_graph=True)
        loop.sync(model)
        loss(second).backward()


@kind(plain="parts")
def same_loss_twice(loop: Loop) -> None:
    """A second backward through a whole retained graph: DDP has averaged by then and adds the second as it is."""
    for model, step in loop.training(mlp()):
        value = loss(model(loop.batch(step)))
        value.backward(retain_graph=True)
        loop.sync(model)
        (2 * value).backward()


@kind(three=True)
def three_heads(loop: Loop) -> None:
    """Three outputs with a backward each."""
    for model, step in loop.training(Apart(3)):
        for output in model(loop.batch(step)):
            loss(output).backward()


@kind()
def heads_in_another_order_on_each_rank(loop: Loop) -> None:
    """Ranks have backwards of the same outputs in another order."""
    for model, step in loop.training(Apart(2)):
        outputs = list(model(loop.batch(step)))
        for output in outputs if loop.rank else outputs[::-1]:
            loss(output).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def one_head_in_some_steps(loop: Loop) -> None:
    """The second loss is left out in every second step, on all ranks; both have a backward of their own."""
    for model, step in loop.training(Apart(2), count=6):
        first, second = model(loop.batch(step))
        loss(first).backward()
        loop.sync(model)
        if step % 2 == 0:
            loss(second).backward()
            loop.sync(model)


@kind(plain="error", plain_cause=UNFINISHED, ours="either", cause="ddpfix:|[Tt]imed out|Connection closed", three=True)
def second_backward_on_one_rank(loop: Loop) -> None:
    """Rank 0 alone has a backward of the second output: no rank knows that of another one without asking."""
    for model, step in loop.training(Apart(2)):
        first, second = model(loop.batch(step))
        loss(first).backward()
        loop.sync(model)
        if loop.rank == 0 or step == 0:
            loss(second).backward()


@kind(plain="parts", ours="error", cause="ddpfix:|[Tt]imed out|Connection closed", traced=False)
def second_backward_of_all_on_one_rank(loop: Loop) -> None:
    """Rank 0 alone has a second backward through everything, once: its replica goes its own way in plain torch.

    The others are a step further by the time they could learn of it, so that steps are not compared.
    """
    _more_backwards(loop, {2: 0})


@kind(plain="parts", ours="error", cause="ddpfix:|[Tt]imed out|Connection closed", traced=False)
def second_backward_on_ranks_in_turn(loop: Loop) -> None:
    """Rank 0 has a second backward once, and rank 1 has one two steps later, so that both have as many in the end.

    What is averaged in between must not be gradients of one step with gradients of the next one.
    """
    _more_backwards(loop, {2: 0, 4: 1})


def _more_backwards(loop: Loop, ranks: Dict[int, int]) -> None:
    """A second backward in some steps, on one rank."""
    for model, step in loop.training(mlp(), count=6):
        value = loss(model(loop.batch(step)))
        value.backward(retain_graph=True)
        loop.sync(model)
        if ranks.get(step) == loop.rank:
            value.backward()


@kind(plain="error", plain_cause=UNFINISHED + "|[Tt]imed out|Connection closed", three=True)
def task_per_rank(loop: Loop) -> None:
    """Each rank trains a task of its own, with a head that the others never use."""
    for model, step in loop.training(Heads(3)):
        loss(model(loop.batch(step), [loop.rank])[0]).backward()


@kind(plain="error", plain_cause=UNFINISHED + "|" + TWICE, three=True)
def tasks_accumulated(loop: Loop) -> None:
    """A forward and a backward for each task, then one step, without no_sync."""
    for model, step in loop.training(Heads(3)):
        for task in range(3):
            loss(model(loop.batch(step, task), [task])[0]).backward()
            loop.sync(model)


@kind(three=True)
def aside_after(loop: Loop) -> None:
    """An auxiliary loss that the model keeps has a backward after the main one."""
    for model, step in loop.training(Aside()):
        loss(model(loop.batch(step))).backward()
        model.module.own.backward()


@kind(three=True)
def aside_before(loop: Loop) -> None:
    """The auxiliary loss comes first, through nothing that an output shows."""
    for model, step in loop.training(Aside()):
        output = model(loop.batch(step))
        model.module.own.backward()
        loss(output).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def aside_after_a_step_without(loop: Loop) -> None:
    """The auxiliary loss has its own backward from the second step on."""
    for model, step in loop.training(Aside()):
        loss(model(loop.batch(step))).backward()
        loop.sync(model)
        if step:
            model.module.own.backward()
            loop.sync(model)


@kind(plain="error", plain_cause=UNFINISHED)
def aside_without_main(loop: Loop) -> None:
    """In every second step the auxiliary loss alone is trained on, and no output is reached at all."""
    for model, step in loop.training(Aside()):
        value = loss(model(loop.batch(step)))
        (model.module.own if step % 2 else value).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def output_never_used(loop: Loop) -> None:
    """A second output is held through the step and reaches no loss."""
    model = loop.wrap(Apart(2))
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        first, held = model(loop.batch(step))
        loss(first).backward()
        loop.update(optimizer, model)
        assert held.requires_grad


@kind(plain="error", plain_cause=UNFINISHED)
def used_by_hand_before_the_other_output(loop: Loop) -> None:
    """Gradients are used by hand while a second output is still to be reached, which never is."""
    model = loop.wrap(Apart(2))
    for step in loop.steps():
        first, later = model(loop.batch(step))
        loss(first).backward()
        loop.sync(model)
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad
        del later


class _Stacks(nn.Module):
    """Two outputs with graphs of their own, of which the first leaves blocks out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Blocks(), Blocks()

    def forward(self, x: torch.Tensor, skips: Sequence[int]) -> Any:
        return self.one(x, skips), self.other(x)


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def two_losses_skipping(loop: Loop) -> None:
    """Two losses with a backward each, of which the first leaves blocks out."""
    for model, step in loop.training(_Stacks()):
        first, second = model(loop.batch(step), uneven(loop.rank, step))
        loss(first).backward()
        second.abs().mean().backward()


@dataclass
class Made:
    main: Any
    spare: Any
    parts: Any


class _Shaped(nn.Module):
    """Puts outputs in a dataclass, a dict or an object; the spare one is used in some steps only."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.shape, self.main, self.spare = shape, mlp(), mlp()

    def forward(self, x: torch.Tensor) -> Any:
        main = self.main(x)
        return self.shape(main, self.spare(x))


def _as_dataclass(main: Any, spare: Any) -> Made:
    return Made(main, spare, {"a": [main.detach()], "b": (main * 2, None, "text", 3)})


def _as_dict(main: Any, spare: Any) -> Any:
    return {"main": main, "spare": [(spare,)], "seen": main.detach(), "count": 4}


@kind(plain="error", plain_cause=UNFINISHED)
def outputs_in_a_dataclass(loop: Loop) -> None:
    """Outputs in a dataclass, with detached ones, text and None beside them."""
    for model, step in loop.training(_Shaped(_as_dataclass)):
        made = model(loop.batch(step))
        (loss(made.parts["b"][0]) + (loss(made.spare) if (step + loop.rank) % 2 else 0)).backward()


@kind(three=True)
def outputs_in_a_dict(loop: Loop) -> None:
    """Outputs in a dict, all used, each with a backward of its own."""
    for model, step in loop.training(_Shaped(_as_dict)):
        made = model(loop.batch(step))
        loss(made["spare"][0][0]).backward()
        loss(made["main"]).backward()


class _Opaque:
    """An object of the user's own, whose contents DDP does not see."""

    def __init__(self, main: Any, spare: Any) -> None:
        self.main, self.spare = main, spare


@kind(plain="error", plain_cause=UNFINISHED)
def outputs_in_an_object(loop: Loop) -> None:
    """Outputs in an object of the user's own class, one of them used in some steps."""
    for model, step in loop.training(_Shaped(_Opaque)):
        made = model(loop.batch(step))
        (loss(made.main) + (loss(made.spare) if step % 2 else 0)).backward()


@kind(plain="error", plain_cause=UNFINISHED)
def output_changed_in_place(loop: Loop) -> None:
    """An output is changed in place before the loss is made of it."""
    for model, step in loop.training(Heads()):
        (output,) = model(loop.batch(step), [(step + loop.rank) % 2])
        output.mul_(2).add_(1)
        output[0].zero_()
        loss(output).backward()


@kind()
def hooks_on_outputs(loop: Loop) -> None:
    """The user's own hooks on outputs halve their gradients, and retain_grad keeps them."""
    for model, step in loop.training(Apart(2)):
        first, second = model(loop.batch(step))
        first.register_hook(lambda slope: slope * 0.5)
        first.retain_grad()
        (loss(first) + loss(second)).backward()
        assert first.grad is not None


class _Sometimes(nn.Module):
    """Returns a constant where the caller says so."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: torch.Tensor, constant: bool) -> torch.Tensor:
        return torch.ones(4, SIZE, requires_grad=True) * 1.0 if constant else self.net(x)


@kind(plain="hangs", ours="plain")
def constant_on_one_rank(loop: Loop) -> None:
    """On one rank, the output has a graph that reaches no parameter.

    Such a backward cannot be distinguished from one for inputs alone (an attack), which must not be averaged.
    """
    for model, step in loop.training(_Sometimes()):
        loss(model(loop.batch(step), step % 2 == 1 and loop.rank == 1)).backward()


@kind(plain="hangs", ours="plain")
def no_loss_on_one_rank(loop: Loop) -> None:
    """On one rank a batch has no target: forward, but no backward at all in this step.

    Nothing happens on this rank in which anyone could take part in the others' reduction.
    """
    for model, step in loop.training(mlp()):
        value = loss(model(loop.batch(step)))
        if step != 2 or loop.rank == 0:
            value.backward()


class _Returning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = Heads(), nn.Parameter(torch.ones(SIZE))

    def forward(self, x: torch.Tensor, task: int) -> Any:
        return self.net(x, [task])[0], self.scale, x


@kind(plain="error", plain_cause=UNFINISHED)
def parameter_among_outputs(loop: Loop) -> None:
    """One output is a parameter, another one is the input itself."""
    for model, step in loop.training(_Returning()):
        output, scale, same = model(loop.batch(step).requires_grad_(), step % 2)
        (loss(output * scale) + same.mean()).backward()


@kind(plain="error", plain_cause=UNFINISHED)
def backward_with_several_roots(loop: Loop) -> None:
    """``torch.autograd.backward([a, b])`` with two of three outputs."""
    for model, step in loop.training(Apart(3)):
        outputs = model(loop.batch(step))
        roots = [loss(output) for index, output in enumerate(outputs) if index != (step + loop.rank) % 3]
        torch.autograd.backward(roots)


@kind(plain="error", plain_cause=UNFINISHED)
def backward_of_chosen_parameters(loop: Loop) -> None:
    """``backward(inputs=...)`` with parameters of one part in each step, as in block coordinate descent."""
    for model, step in loop.training(Apart(2)):
        chosen = list(model.module.parts[step % 2].parameters())
        sum(loss(output) for output in model(loop.batch(step))).backward(inputs=chosen)
