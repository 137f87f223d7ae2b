"""Optimizers of all kinds, and optimizers that are not from torch."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List

import torch

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


Make = Callable[[Any], Any]
MAKERS: Dict[str, Make] = {
    "adamw_fused": lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=True),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "own_subclass": Signs,
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
def zero_redundancy(loop: Loop) -> None:
    """ZeroRedundancyOptimizer on a model that leaves blocks out: its shards are broadcast within the step."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = loop.wrap(Blocks())
    optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for step in loop.trained(model, optimizer=optimizer):
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()


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
