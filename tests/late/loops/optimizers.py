"""Optimizers of all kinds, and optimizers that are not from torch."""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any, Callable, Dict, List

import torch
from torch import nn

from tests.late.loops.kinds import UNFINISHED, add, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, uneven


class Signs(torch.optim.Optimizer):
    """Lion in short: an own subclass of Optimizer."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    slow = self.state[p].setdefault("slow", torch.zeros_like(p))
                    slow.lerp_(p.grad, 0.3)
                    p.data.add_(slow.sign(), alpha=-group["lr"])
        return None


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


class Lookahead:
    """Slow weights that follow every second step of an inner optimizer."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.count = inner, 0
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        self.count += 1
        if self.count % 2 == 0:
            for slow, p in zip(self.slow, (p for group in self.inner.param_groups for p in group["params"])):
                p.copy_(slow.lerp_(p, 0.5))


Make = Callable[[Any], Any]
MAKERS: Dict[str, Make] = {
    "adamw_foreach": lambda ps: torch.optim.AdamW(ps, lr=0.01, foreach=True),
    "adamw_fused": lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=True),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01),
    "own_subclass": Signs,
    "own_class": Own,
    "lookahead": lambda ps: Lookahead(torch.optim.SGD(ps, lr=0.1)),
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


@kind()
def lbfgs(loop: Loop) -> None:
    """A closure that is called several times in a step."""
    model = loop.wrap(mlp())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=3)
    for step in loop.steps(3):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            value = loss(model(loop.same(step)))
            value.backward()
            loop.sync(model)
            return value.detach()

        optimizer.step(closure)


@kind(plain="error", plain_cause=UNFINISHED)
def lbfgs_skipping(loop: Loop) -> None:
    """The same with other blocks left out in each call."""
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


@kind(three=True)
def lightning_closure(loop: Loop) -> None:
    """Forward and backward within the optimizer's step."""
    model = loop.wrap(mlp())
    optimizer = sgd(model, momentum=0.9)
    for step in loop.steps():

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            value = loss(model(loop.batch(step)))
            value.backward()
            loop.sync(model)
            return value

        optimizer.step(closure)


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def lightning_closure_skipping(loop: Loop) -> None:
    """The same with blocks left out."""
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


@kind(plain="right", three=True)
def sam(loop: Loop) -> None:
    """Sharpness-aware: a backward, a step up, a second backward there, and a step down from where it began."""
    model = loop.wrap(mlp())
    optimizer = sgd(model)
    for step in loop.steps():
        loss(model(loop.batch(step))).backward()
        loop.sync(model)
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            up = [p.grad * (0.05 / norm) for p in model.parameters()]
            torch._foreach_add_(list(model.parameters()), up)
        optimizer.zero_grad()
        loss(model(loop.batch(step))).backward()
        loop.sync(model)
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), up)
        optimizer.step()
        optimizer.zero_grad()


@kind(plain="error", plain_cause=UNFINISHED)
def sam_skipping(loop: Loop) -> None:
    """The same with blocks left out, others in the second forward."""
    model = loop.wrap(Blocks())
    optimizer = sgd(model)
    for step in loop.steps():
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()
        loop.sync(model)
        with torch.no_grad():
            up = [torch.zeros_like(p) if p.grad is None else 0.05 * p.grad for p in model.parameters()]
            torch._foreach_add_(list(model.parameters()), up)
        optimizer.zero_grad()
        loss(model(loop.batch(step), uneven(loop.rank, step + 1))).backward()
        loop.sync(model)
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), up)
        optimizer.step()
        optimizer.zero_grad()


@kind(three=True)
def sam_without_sync(loop: Loop) -> None:
    """SAM as its authors advise: each rank climbs by its own gradient, under no_sync."""
    model = loop.wrap(mlp())
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        with model.no_sync():
            loss(model(loop.batch(step))).backward()
        up = [0.05 * p.grad for p in model.parameters()]
        was = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), up)
        optimizer.zero_grad()
        loss(model(loop.batch(step))).backward()
        loop.sync(model)
        with torch.no_grad():
            for p, old in zip(model.parameters(), was):
                p.copy_(old)
        optimizer.step()


@kind(plain="error", plain_cause=UNFINISHED)
def zero_redundancy(loop: Loop) -> None:
    """ZeroRedundancyOptimizer on a model that leaves blocks out: its shards are broadcast within the step."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = loop.wrap(Blocks())
    optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for step in loop.trained(model, optimizer=optimizer):
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()


@kind()
def zero_redundancy_full(loop: Loop) -> None:
    """ZeroRedundancyOptimizer on a model that uses all of its parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = loop.wrap(mlp())
    optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for step in loop.trained(model, optimizer=optimizer):
        loss(model(loop.batch(step))).backward()


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


@kind(
    plain="error",
    plain_cause="accelerator|[Cc][Uu][Dd][Aa]",
    ours="plain",
    cause="accelerator|[Cc][Uu][Dd][Aa]",
    needs=("torch.distributed.optim._apply_optimizer_in_backward",),
)
def step_in_backward(loop: Loop) -> None:
    """``_apply_optimizer_in_backward``, for which DDP has a way of its own, which needs an accelerator."""
    from torch.distributed.optim import _apply_optimizer_in_backward

    module = Blocks()
    optimizer = sgd(module)
    if not loop.hand:
        _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
    model = loop.wrap(module)
    for step in loop.steps():
        optimizer.zero_grad()
        loss(model(loop.batch(step))).backward()
        loop.sync(model)
        if loop.hand:
            optimizer.step()


@kind(plain="error", plain_cause=UNFINISHED)
def two_optimizers_for_two_parts(loop: Loop) -> None:
    """Each part of the model has an optimizer; they step in turn, and the other part gets no gradient."""
    model = loop.wrap(_Parts())
    optimizers = [sgd(model.module.a), torch.optim.Adam(model.module.b.parameters(), lr=0.01)]
    for step in loop.steps(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(model(loop.batch(step), step % 2 == 0)).backward()
        loop.update(optimizers[step % 2], model)


class _Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = mlp(), mlp()

    def forward(self, x: torch.Tensor, first: bool) -> torch.Tensor:
        return self.a(x) if first else self.b(x)


@kind()
def two_optimizers_of_all(loop: Loop) -> None:
    """Two optimizers over the same parameters step one after the other."""
    model = loop.wrap(mlp())
    optimizers = [sgd(model), torch.optim.Adam(model.parameters(), lr=0.001)]
    for step in loop.steps():
        model.zero_grad()
        loss(model(loop.batch(step))).backward()
        loop.sync(model)
        for optimizer in optimizers:
            optimizer.step()


@kind(three=True)
def averaged_weights(loop: Loop) -> None:
    """SWA and a schedule of rates; the averaged model is a deep copy of the wrapped one."""
    model = loop.wrap(mlp())
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(step / 4)))
    averaged = torch.optim.swa_utils.AveragedModel(model)
    loop.track(averaged)
    for step in loop.steps():
        optimizer.zero_grad()
        loss(model(loop.batch(step))).backward()
        loop.update(optimizer, model)
        schedule.step()
        averaged.update_parameters(model)


@kind(plain="error", plain_cause=UNFINISHED)
def reptile(loop: Loop) -> None:
    """First-order meta-learning: some steps on a task, which leaves blocks out, then back by half the way."""
    model = loop.wrap(Blocks())
    optimizer = sgd(model)
    for step in loop.steps(3):
        was = copy.deepcopy(model.module.state_dict())
        for turn in range(2):
            optimizer.zero_grad()
            loss(model(loop.batch(step, turn), uneven(loop.rank, step + turn))).backward()
            loop.update(optimizer, model)
        now = model.module.state_dict()
        model.module.load_state_dict({name: 0.5 * was[name] + 0.5 * now[name] for name in was})


@kind(plain="error", plain_cause=UNFINISHED)
def stepping_threads(loop: Loop) -> None:
    """The optimizer's step runs in another thread than forward and backward."""
    import threading

    model = loop.wrap(Blocks())
    failures: List[BaseException] = []
    optimizer = sgd(model)

    def step_now() -> None:
        try:
            optimizer.step()
        except BaseException as error:
            failures.append(error)

    for step in loop.steps():
        optimizer.zero_grad()
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()
        loop.sync(model)
        thread = threading.Thread(target=step_now)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
