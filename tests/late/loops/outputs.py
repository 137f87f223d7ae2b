"""Models with several outputs, losses that use some of them, outputs that are kept; and process groups."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Any, List, Sequence

import torch
from torch import distributed, nn

from tests.late.loops.kinds import TWICE, UNFINISHED, kind
from tests.late.loops.loop import SIZE, Loop
from tests.late.loops.tiny_model import Apart, Aside, Blocks, Heads, loss, mlp, uneven, usual
from tests.support.ranks import free_port


@kind(plain="error", plain_cause=TWICE, three=True)
def shared_trunk_retained(loop: Loop) -> None:
    """Two heads with a backward each through a trunk that they share, whose graph is retained."""
    for model, step in loop.training(Heads(), momentum=0.9):
        first, second = model(loop.batch(step))
        loss(first).backward(retain_graph=True)
        loop.sync(model)
        loss(second).backward()


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
def second_backward_on_ranks_in_turn(loop: Loop) -> None:
    """Rank 0 has a second backward once, and rank 1 has one two steps later, so that both have as many in the end.

    What is averaged in between must not be gradients of one step with gradients of the next one. The other rank is a
    step further by the time it could learn of it, so that steps are not compared.
    """
    for model, step in loop.training(mlp(), count=6):
        value = loss(model(loop.batch(step)))
        value.backward(retain_graph=True)
        loop.sync(model)
        if (step, loop.rank) in ((2, 0), (4, 1)):
            value.backward()


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
    for model, step in loop.training(Apart(2)):
        first, _held = model(loop.batch(step))
        loss(first).backward()


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
    """Puts outputs in a dataclass or an object; the spare one is used in some steps only."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.shape, self.main, self.spare = shape, mlp(), mlp()

    def forward(self, x: torch.Tensor) -> Any:
        main = self.main(x)
        return self.shape(main, self.spare(x))


def _as_dataclass(main: Any, spare: Any) -> Made:
    return Made(main, spare, {"a": [main.detach()], "b": (main * 2, None, "text", 3)})


@kind(plain="error", plain_cause=UNFINISHED)
def outputs_in_a_dataclass(loop: Loop) -> None:
    """Outputs in a dataclass, with detached ones, text and None beside them."""
    for model, step in loop.training(_Shaped(_as_dataclass)):
        made = model(loop.batch(step))
        (loss(made.parts["b"][0]) + (loss(made.spare) if (step + loop.rank) % 2 else 0)).backward()


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


class _Sometimes(nn.Module):
    """Returns a constant where the caller says so."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: torch.Tensor, constant: bool) -> torch.Tensor:
        return torch.ones(4, SIZE, requires_grad=True) * 1.0 if constant else self.net(x)


@kind(plain="hangs", ours="plain")
def constant_on_one_rank(loop: Loop) -> None:
    """On one rank the graph reaches no parameter, as in a backward for inputs alone, which must not be averaged."""
    for model, step in loop.training(_Sometimes()):
        loss(model(loop.batch(step), step % 2 == 1 and loop.rank == 1)).backward()


@kind(plain="hangs", ours="plain")
def no_loss_on_one_rank(loop: Loop) -> None:
    """On one rank a batch has a forward and no backward, so that nothing happens there that could take part."""
    for model, step in loop.training(mlp()):
        value = loss(model(loop.batch(step)))
        if step != 2 or loop.rank == 0:
            value.backward()


@kind(plain="error", plain_cause=UNFINISHED)
def backward_with_several_roots(loop: Loop) -> None:
    """``torch.autograd.backward([a, b])`` with two of three outputs."""
    for model, step in loop.training(Apart(3)):
        outputs = model(loop.batch(step))
        roots = [loss(output) for index, output in enumerate(outputs) if index != (step + loop.rank) % 3]
        torch.autograd.backward(roots)


@kind(plain="error", plain_cause=UNFINISHED, three=True, theme="groups")
def group_of_some(loop: Loop) -> None:
    """The first ranks but one train a model that leaves blocks out, the last rank trains another one alone."""
    groups = [distributed.new_group(list(range(loop.size - 1))), distributed.new_group([loop.size - 1])]
    group = groups[loop.rank == loop.size - 1]
    usual(loop, loop.wrap(Blocks(), process_group=group))


@kind(plain="error", plain_cause=UNFINISHED, theme="groups")
def two_groups(loop: Loop) -> None:
    """Two models over two groups of the same ranks are trained in one step, and leave blocks out."""
    ranks = list(range(loop.size))
    models = [loop.wrap(Blocks(), process_group=distributed.new_group(ranks)) for _ in range(2)]
    for step in loop.trained(*models):
        for number, model in enumerate(models):
            loss(model(loop.batch(step), uneven(loop.rank, step + number))).backward()


@kind(theme="groups")
def two_models_interleaved(loop: Loop) -> None:
    """Forwards of two models, then their losses in turn, two outputs each."""
    models = [loop.wrap(Apart(2)) for _ in range(2)]
    for step in loop.trained(*models):
        outputs = [model(loop.batch(step)) for model in models]
        for turn in range(2):
            for output in outputs:
                loss(output[turn]).backward()


@kind(theme="groups")
def one_model_feeds_another(loop: Loop) -> None:
    """Two wrapped models in a row, one backward; the second is called with two pieces of the first one's output."""
    one, other = loop.wrap(mlp()), loop.wrap(mlp())
    for step in loop.trained(one, other):
        pieces = one(loop.batch(step)).chunk(2)
        sum(loss(other(piece)) for piece in pieces).backward()


@kind(plain="error", plain_cause=UNFINISHED, three=True, theme="groups")
def one_model_feeds_another_skipping(loop: Loop) -> None:
    """The same with blocks left out in both models."""
    one, other = loop.wrap(Blocks()), loop.wrap(Blocks())
    for step in loop.trained(one, other):
        output = one(loop.batch(step), uneven(loop.rank, step))
        loss(other(output, uneven(loop.rank, step + 1))).backward()


def _agreed_port(loop: Loop) -> int:
    ports: List[Any] = [None]
    if loop.rank == 0:
        ports = [free_port()]
    distributed.broadcast_object_list(ports, 0)
    return int(ports[0])


def _made_again(loop: Loop, skip: bool) -> None:
    module = Blocks()
    for turn in range(2):
        model = loop.wrap(module)
        for step in loop.trained(model, count=2):
            loss(model(loop.batch(step, turn), uneven(loop.rank, step) if skip else ())).backward()
        if turn == 0:
            del model
            port = _agreed_port(loop)
            distributed.barrier()
            distributed.destroy_process_group()
            loop.rank = loop.size - 1 - loop.rank
            os.environ.update(MASTER_PORT=str(port), RANK=str(loop.rank))
            distributed.init_process_group(
                "gloo", rank=loop.rank, world_size=loop.size, timeout=datetime.timedelta(seconds=6)
            )


@kind(counted=False, three=True, needs=("2.1",), theme="groups")
def group_made_again(loop: Loop) -> None:
    """The group is made again, with other ranks (in plain torch 2.0 a rank may hang in destroy_process_group)."""
    _made_again(loop, False)


@kind(plain="error", plain_cause=UNFINISHED, three=True, needs=("2.1",), theme="groups")
def group_made_again_skipping(loop: Loop) -> None:
    """The same with blocks left out."""
    _made_again(loop, True)


@kind(
    plain="error",
    plain_cause=UNFINISHED,
    needs=("torch.distributed.device_mesh.init_device_mesh", "2.3"),
    theme="groups",
)
def device_mesh_skipping(loop: Loop) -> None:
    """A mesh of devices instead of a group, blocks are left out."""
    from torch.distributed.device_mesh import init_device_mesh

    usual(loop, loop.wrap(Blocks(), device_mesh=init_device_mesh("cpu", (loop.size,))))


@kind(plain="error", plain_cause=UNFINISHED, theme="groups")
def experts_in_a_group_of_their_own(loop: Loop) -> None:
    """Experts are wrapped in groups of one rank, the trunk in one of all; an expert is left out in some steps."""
    alone = [distributed.new_group([rank]) for rank in range(loop.size)]
    trunk, experts = loop.wrap(mlp()), loop.wrap(Apart(2), process_group=alone[loop.rank])
    for step in loop.trained(trunk, experts):
        (output,) = experts(trunk(loop.batch(step)), [(step + loop.rank) % 2])
        loss(output).backward()
