"""Models of many shapes: kinds of parameters, ways in which a forward uses them, and activation checkpointing."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from tests.late.loops.kinds import TWICE, UNFINISHED, add, kind
from tests.late.loops.loop import SIZE, Loop
from tests.late.loops.tiny_model import Apart, Blocks, Heads, loss, mlp, nothing, program, uneven, usual


def own(rank: int, step: int) -> Sequence[Any]:
    """For a model that takes a batch, the rank and the step."""
    return rank, step


_SKIPS: Dict[str, Any] = {"theme": "models", "plain": "error", "plain_cause": UNFINISHED}
# The plainest of all programs.
add("one_loss", program(mlp, nothing, momentum=0.9), theme="models", three=True)
# More than a hundred parameters without gradient in a step, which is what torch names at most.
_most = program(lambda: Blocks(160), lambda rank, step: [range(1 + (rank + step) % 2, 158)])
add("many_blocks_left_out", _most, three=True, **_SKIPS)


# The same blocks are left out in each step, others on each rank, one on all; also where gradients are views of buckets.
for _name, _options in (("steady_skipping", {}), ("steady_views_skipping", {"gradient_as_bucket_view": True})):
    _steady = program(lambda: Blocks(6), lambda rank, step: [(2, 3 + rank)], momentum=0.9, **_options)
    add(_name, _steady, **_SKIPS)
# ``torch.compile`` of the module that is wrapped.
_compiled = program(
    lambda: torch.compile(Blocks(), backend="eager"), lambda rank, step: [uneven(rank, step) if step % 2 else ()]
)
add("compiled_within_skipping", _compiled, needs=("2.1",), timeout=40, **_SKIPS)


@kind(plain="error", plain_cause=UNFINISHED)
def forward_twice_skipping(loop: Loop) -> None:
    """Two forwards before one backward of the sum, and a third output; blocks are left out, others in each forward."""
    for model, step in loop.training(Blocks()):
        model(loop.batch(step, 5), uneven(loop.rank, step))
        one, other = (model(loop.batch(step, turn), uneven(loop.rank, step + turn)) for turn in (1, 2))
        (loss(one) + loss(other)).backward()


@kind(plain="parts", three=True)
def two_forwards_two_backwards(loop: Loop) -> None:
    """Two forwards, then a backward of each: DDP is armed for the second one, and averages in the first."""
    for model, step in loop.training(mlp()):
        one, other = loss(model(loop.batch(step))), loss(model(loop.batch(step, 1)))
        one.backward()
        loop.sync(model)
        other.backward()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        for _ in range(3):
            state = self.cell(x, state)
        return self.out(state), state


@kind(plain="error", plain_cause=UNFINISHED)
def recurrent_over_calls(loop: Loop) -> None:
    """The wrapped model is called for each time step, and one loss goes back through all calls."""
    for model, step in loop.training(Recurrent()):
        _, state = model(loop.batch(step))
        for time in range((loop.rank + step) % 2):
            _, state = model(loop.batch(step, time), state)
        loss(state).backward()


class SparseOrNot(nn.Module):
    """A sparse embedding that is itself left out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, SIZE, sparse=True), mlp()

    def forward(self, x: torch.Tensor, rank: int, step: int) -> torch.Tensor:
        if (rank + step) % 2:
            x = x + self.table((x[:, 0].abs() * 10).long() % 10)
        return self.out(x)


@kind(plain="error", plain_cause=UNFINISHED, ours="either", cause="ddpfix:|" + UNFINISHED + "|sparse|Sparse")
def sparse_embedding_left_out(loop: Loop) -> None:
    """A sparse embedding is left out on some ranks: DDP cannot make an empty sparse gradient.

    Its bucket of sparse gradients takes the gradient itself, and a rank without one has none to send; the flag fails
    on it, too, which makes an error that says so as good as can be.
    """
    usual(loop, loop.wrap(SparseOrNot()), own)


class Deep(Blocks):
    """Stochastic depth: blocks are left out at random on each rank."""

    def forward(self, x: torch.Tensor, rank: int, step: int) -> torch.Tensor:  # type: ignore[override]
        generator = torch.Generator().manual_seed(100 * rank + step)
        for index, block in enumerate(self.blocks):
            if index == 0 or torch.rand((), generator=generator) < 0.5:
                x = x + block(x).tanh()
        return x


# The user's own LayerDrop, whose ranks do not agree.
add("layerdrop", program(lambda: Deep(6), own), three=True, **_SKIPS)


@kind(plain="error", plain_cause="which is undefined|second time|" + TWICE, ours="plain", needs=("2.4",))
def flag_set_and_two_backwards(loop: Loop) -> None:
    """The user's flag and a backward for each of two outputs: torch looks for unused ones, and its error stands."""
    for model, step in loop.training(Heads(), find_unused_parameters=True):
        first, second = model(loop.batch(step))
        loss(first).backward(retain_graph=True)
        loop.sync(model)
        if step % 2:
            loss(second).backward()
            loop.sync(model)


@kind(three=True)
def small_buckets_and_heads(loop: Loop) -> None:
    """Many buckets and three outputs with a backward each."""
    for model, step in loop.training(Apart(3), bucket_cap_mb=0.0003):
        for output in model(loop.batch(step)):
            loss(output).backward()


class Odd(nn.Module):
    """Parameters of odd shapes: a number, none at all, a frozen one, one that is used through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.empty = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(0, 3))
        self.flat = nn.Parameter(torch.randn(SIZE * SIZE) * 0.1)
        self.frozen = nn.Parameter(torch.ones(SIZE), requires_grad=False)
        self.spare = nn.ParameterList([nn.Parameter(torch.zeros(SIZE)) for _ in range(2)])

    def forward(self, x: torch.Tensor, rank: int, step: int) -> torch.Tensor:
        y = x @ self.flat.view(SIZE, SIZE) * self.scale + self.frozen + self.empty.sum()
        return y + self.spare[(rank + step) % 2]


add("odd_parameters", program(Odd, own), **_SKIPS)


class _Scaled(torch.autograd.Function):
    """An own function with two inputs, which has no gradient for the second one now and then."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, scale: torch.Tensor, use: bool) -> torch.Tensor:
        context.save_for_backward(x, scale)
        context.use = use
        return x * scale

    @staticmethod
    def backward(context: Any, slope: torch.Tensor) -> Any:
        x, scale = context.saved_tensors
        return slope * scale, (slope * x).sum(0) if context.use else None, None


class Undefined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = mlp(), nn.Parameter(torch.ones(SIZE))

    def forward(self, x: torch.Tensor, rank: int, step: int) -> torch.Tensor:
        return _Scaled.apply(self.net(x), self.scale, (rank + step) % 2 == 0)


# An own function returns None for a parameter on some ranks: DDP's hook fires with an undefined gradient.
add("function_without_gradient", program(Undefined, own), theme="models")


# Activation checkpointing of both kinds, within the wrapped model and around it.


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
add("reentrant_full", trained(True, False), three=True, theme="checkpointing")
add("reentrant_skipping", trained(True, True), three=True, **_STOCK, theme="checkpointing")
add("reentrant_accumulating_skipping", trained(True, True, True), **_STOCK, theme="checkpointing")
add("non_reentrant_full", trained(False, False), theme="checkpointing")
add("non_reentrant_skipping", trained(False, True), three=True, **_STOCK, theme="checkpointing")


@kind(**_STOCK, theme="checkpointing")
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


add("checkpoint_around_reentrant", around(True), counted=False, theme="checkpointing")
add("checkpoint_around_non_reentrant", around(False), counted=False, theme="checkpointing")


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
@kind(plain="parts", ours="either", cause="ddpfix:|" + TWICE, close=1e-7, theme="checkpointing")
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


@kind(**_USED_TWICE, theme="checkpointing")
def reentrant_in_two_forwards(loop: Loop) -> None:
    """One module stands in a checkpoint of each of two forwards, which have one backward."""
    for model, step in loop.training(Between()):
        (model(loop.batch(step)) - model(loop.batch(step, 1))).pow(2).mean().backward()


@kind(**_USED_TWICE, theme="checkpointing")
def reentrant_three_times(loop: Loop) -> None:
    """One module stands in three checkpoints of one forward, between layers that are in none."""
    for model, step in loop.training(Between(3)):
        loss(model(loop.batch(step))).backward()


# A static graph has DDP wait for the last of a module's backwards.
add("reentrant_twice_with_a_static_graph", program(lambda: Between(2), nothing, static_graph=True), "checkpointing")
# A checkpoint of the user's own, whose backward returns half of the gradient.
_halved = program(lambda: Between(run=lambda block, x: Halved.apply(block, True, x)), nothing)
add("reentrant_of_the_users_own", _halved, "checkpointing")
