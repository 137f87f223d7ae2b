"""Optimizers of all kinds, optimizers that are not from torch, and loss scaling."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict

import torch

from tests.late.loops.kinds import UNFINISHED, add, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, uneven, usual


class Own:
    """An optimizer that torch knows nothing of."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for p in self.parameters:
            if p.grad is not None:
                p.sub_(p.grad.clamp(-0.1, 0.1))


Make = Callable[[Any], Any]
MAKERS: Dict[str, Make] = {
    "adamw_fused": lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=True),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "own_class": Own,
}


def program(make: Make, skip: bool) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """All parameters are used, or each rank leaves other blocks out, of which each is used by some rank."""
        model = loop.wrap(Blocks() if skip else mlp())
        for step in loop.trained(model, optimizer=make(model.parameters())):
            skips = [(1,) if loop.rank == step % loop.size else (2, 3)] if skip else []
            loss(model(loop.batch(step), *skips)).backward()

    return train


for _name, _make in MAKERS.items():
    _needs = ("2.4",) if _name == "adamw_fused" else ()
    # Signs of a rounding error are as large as any.
    add(f"{_name}_full", program(_make, False), needs=_needs, three=_name == "own_class")
    _plain = {"plain": "error", "plain_cause": UNFINISHED}
    add(f"{_name}_skipping", program(_make, True), needs=_needs, three=_name in ("own_class", "momentum"), **_plain)


@kind(plain="error", plain_cause=UNFINISHED)
def lbfgs_skipping(loop: Loop) -> None:
    """A closure that is called several times in a step, and leaves other blocks out each time."""
    model, calls = loop.wrap(Blocks()), [0]
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for step in loop.steps(3):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            calls[0] += 1
            value = loss(model(loop.same(step), uneven(0, calls[0])))
            value.backward()
            loop.sync(model)
            return value.detach()

        optimizer.step(closure)


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def lightning_closure_skipping(loop: Loop) -> None:
    """Forward and backward within the optimizer's step, blocks are left out."""
    model = loop.wrap(Blocks())
    optimizer = sgd(model)
    for step in loop.steps():

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            value = loss(model(loop.batch(step), uneven(loop.rank, step)))
            value.backward()
            loop.sync(model)
            return value

        optimizer.step(closure)


@kind()
def closure_raises_once(loop: Loop) -> None:
    """A closure raises on all ranks before its forward, once; the loop catches it. Later steps have two backwards."""
    model = loop.wrap(Apart(2))
    optimizer = sgd(model)
    for step in loop.steps(5):

        def closure(step: int = step) -> Any:
            if step == 1:
                raise ValueError("a bad batch")
            optimizer.zero_grad()
            for output in model(loop.batch(step)):
                loss(output).backward()
            loop.sync(model)

        with contextlib.suppress(ValueError):
            optimizer.step(closure)


@kind(plain="error", plain_cause=UNFINISHED)
def zero_redundancy(loop: Loop) -> None:
    """ZeroRedundancyOptimizer on a model that leaves blocks out: its shards are broadcast within the step."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = loop.wrap(Blocks())
    optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    usual(loop, model, optimizer=optimizer)


@kind(plain="parts", ours="plain", cause="", needs=("2.1",))
def step_in_backward_by_hooks(loop: Loop) -> None:
    """``register_post_accumulate_grad_hook`` steps while gradients are still local.

    torch documents that DDP averages later than these hooks run. Nobody can average a gradient that a hook of the
    user's uses before the last one of its bucket has come.
    """
    model = loop.wrap(mlp())
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def hook(p: torch.Tensor) -> None:
        if not loop.hand:
            optimizers[p].step()
            optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for step in loop.steps():
        loss(model(loop.batch(step))).backward()
        loop.sync(model)
        if loop.hand:
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()


SCALER = ("torch.amp.GradScaler",)


def scaler(growth: int = 2) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=growth)


@kind(needs=SCALER, plain="error", plain_cause=UNFINISHED, three=True)
def overflow_on_one_rank_skipping(loop: Loop) -> None:
    """A loss is infinite on one rank, blocks are left out: a rank without a gradient has to learn of it."""
    model, scale = loop.wrap(Blocks()), scaler()
    optimizer = sgd(model)
    for step in loop.steps(5):
        optimizer.zero_grad()
        factor = float("inf") if step in (1, 3) and loop.rank == step % loop.size else 1.0
        scale.scale(loss(model(loop.batch(step), uneven(loop.rank, step))) * factor).backward()
        loop.sync(model)
        scale.step(optimizer)
        scale.update()


@kind(needs=SCALER, three=True)
def one_scaler_for_two_optimizers(loop: Loop) -> None:
    """Two models, two optimizers, one scaler: the second model's backward comes after the first one's unscale_."""
    one, other, scale = loop.wrap(mlp()), loop.wrap(mlp()), scaler()
    optimizers = [sgd(one), sgd(other)]
    for step in loop.steps():
        for model, optimizer in zip((one, other), optimizers):
            optimizer.zero_grad()
            scale.scale(loss(model(loop.batch(step)))).backward()
            loop.sync(model)
            scale.unscale_(optimizer)
        for optimizer in optimizers:
            scale.step(optimizer)
        scale.update()
