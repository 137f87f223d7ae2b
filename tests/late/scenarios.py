"""Single things that a job may do with a model under DDP; each fills ``record``."""

from __future__ import annotations

import datetime
import gc
from importlib import import_module
from typing import Any, Callable, Dict

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.late.cases import SIZE, Plain, Stack, TwoLosses

Record = Dict[str, Any]


def run(scenario: Dict[str, Any]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
    torch.manual_seed(3)
    file, _, name = scenario["function"].rpartition(":")
    home = globals() if not file else vars(import_module(f"tests.late.{file}"))
    function: Callable[[Record], None] = home[name]
    function(scenario["found"])


def wrapped(**options: Any) -> Any:
    return DistributedDataParallel(Stack(6), **options)


def loss(model: Any, number: int) -> Any:
    return Plain().loss(model, distributed.get_rank(), number)


def gradients(model: Any) -> Any:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def weights(model: Any) -> Any:
    return [float(p.detach().sum()) for p in model.parameters()]


def step(model: Any) -> None:
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def explicit_false(record: Record) -> None:
    """An explicit False of the user stands: he gets what plain torch does."""
    model = wrapped(find_unused_parameters=False)
    for number in range(2):
        loss(model, number).backward()
        step(model)


def static(record: Record) -> None:
    """static_graph with parameters that are the same in each step: torch alone handles it."""
    model = wrapped(static_graph=True)
    for number in range(3):
        model(Plain().batch(0, number), [1, 2]).mean().backward()
    from ddpfix.patches.torch.pipeline import ddp
    from ddpfix.patches.torch.unused.states import REDUCTION

    known = ddp.of(model)
    record["armed"] = known is None or REDUCTION.of(known) is not None


def second_backward(record: Record) -> None:
    """A second backward through the same outputs."""
    model = wrapped()
    loss(model, 0).backward()
    step(model)
    model.zero_grad()
    value = loss(model, 1)
    value.backward(retain_graph=True)
    once = gradients(model)
    value.backward()
    record["twice"] = bool(torch.allclose(gradients(model), 2 * once))
    step(model)
    record["weights"] = weights(model)


class Hidden(Stack):
    """Keeps a loss of its own beside its output, which DDP does not see."""

    def __init__(self) -> None:
        super().__init__(4)
        del self.never
        self.aside = torch.nn.Linear(SIZE, SIZE)

    def forward(self, x: Any, skips: Any) -> Any:
        self.own_loss = self.aside(x).pow(2).mean()
        return super().forward(x, [])


def hidden_loss(record: Record) -> None:
    """Two backwards, the second through nothing that an output shows: right in plain torch, and it stays so."""
    model = DistributedDataParallel(Hidden())
    for number in range(4):
        model.zero_grad()
        model(Plain().batch(distributed.get_rank(), number), []).mean().backward()
        model.module.own_loss.backward()
        step(model)
    record["weights"] = weights(model)


def hidden_loss_left_out(record: Record) -> None:
    """The same after a step without it, which plain torch does not survive."""
    model = DistributedDataParallel(Hidden())
    for number in range(5):
        model.zero_grad()
        model(Plain().batch(distributed.get_rank(), number), []).mean().backward()
        if number > 1:
            model.module.own_loss.backward()
        step(model)
    record["weights"] = weights(model)


def closure(record: Record) -> None:
    """Forward and backward within the optimizer's step, as Lightning does it."""
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(4):

        def run(number: int = number) -> Any:
            optimizer.zero_grad()
            value = loss(model, number)
            value.backward()
            return value

        optimizer.step(run)
    record["weights"] = weights(model)


def parameter_returned(record: Record) -> None:
    """An output that is a parameter itself."""

    class Returning(Stack):
        def forward(self, x: Any, skips: Any) -> Any:
            return super().forward(x, skips), self.blocks[0][0].bias

    model = DistributedDataParallel(Returning(6))
    for number in range(4):
        model.zero_grad()
        output, bias = model(Plain().batch(distributed.get_rank(), number), [1])
        (output.mean() + bias.sum()).backward()
        step(model)
    record["hooks"] = len(model.module.blocks[0][0].bias._backward_hooks or {})


def two_backwards_of_two(record: Record) -> None:
    case = TwoLosses()
    model = DistributedDataParallel(case.model())
    for number in range(3):
        case.run(model, distributed.get_rank(), number, None)
        step(model)
    record["ended"] = True


def loss_reduced(record: Record) -> None:
    """The loss is averaged between backward and step, and one rank alone has left something out."""
    model = wrapped()
    del model.module.never
    model = DistributedDataParallel(model.module)
    for number in range(4):
        model.zero_grad()
        value = model(Plain().batch(distributed.get_rank(), number), [2, 3] if distributed.get_rank() else []).mean()
        value.backward()
        distributed.all_reduce(value.detach().clone())
        step(model)
    record["weights"] = weights(model)


def losses_reduced(record: Record) -> None:
    """A loss is averaged between two backwards, which use all parameters together."""
    heads = TwoLosses().model()
    del heads.never, heads.one.never, heads.other.never
    model = DistributedDataParallel(heads)
    for number in range(4):
        model.zero_grad()
        for value in model(Plain().batch(distributed.get_rank(), number), []):
            value.mean().backward()
            distributed.all_reduce(value.detach().mean())
        step(model)
    record["weights"] = weights(model)


def other_model_dropped(record: Record) -> None:
    """A step has one backward fewer than those before it, and another model is given up before the optimizer steps."""
    heads = TwoLosses().model()
    del heads.never, heads.one.never, heads.other.never
    model, other = DistributedDataParallel(heads), wrapped()
    loss(other, 0).backward()
    for number in range(4):
        model.zero_grad()
        values = model(Plain().batch(distributed.get_rank(), number), [])
        for value in values[: 1 if number == 3 else 2]:
            value.mean().backward()
        if number == 3:
            del other
            gc.collect()
        step(model)
    record["weights"] = weights(model)


def by_hand(record: Record) -> None:
    """A loop that uses gradients in a way that cannot be seen, while an output is still to be reached."""
    model = DistributedDataParallel(TwoLosses().model())
    for number in range(2):
        first, later = model(Plain().batch(0, number), [])
        first.mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
        del later
    record["weights"] = weights(model)


def broken_backward(record: Record) -> None:
    """An exception in backward that the loop catches leaves the reduction as plain torch leaves it."""
    model = wrapped()

    def raising(gradient: Any) -> Any:
        raise ValueError("out of memory, say")

    held = model.module.blocks[0][0].weight.register_hook(raising)
    try:
        loss(model, 0).backward()
    except ValueError:
        held.remove()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    loss(model, 1).backward()


def optimizer_within(record: Record) -> None:
    """An optimizer for each parameter steps within the backward, before anything is averaged."""
    model = wrapped()

    def stepping(optimizer: Any) -> Any:
        return lambda parameter: optimizer.step()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(stepping(torch.optim.SGD([parameter], lr=0.1)))
    for number in range(3):
        loss(model, number).backward()


def plain_torch(record: Record) -> None:
    """A forward without gradients, and one whose graph only gives the input's gradient."""
    model = wrapped()
    for number in range(3):
        with torch.no_grad():
            loss(model, number)
        inputs = Plain().batch(0, number).requires_grad_()
        torch.autograd.grad(model(inputs, [1]).sum(), inputs)
        loss(model, number).backward()
        step(model)
    record["sum"] = float(gradients(model).sum())


def uneven(record: Record) -> None:
    """``join``: rank 1 has three batches more than rank 0, all of which leave parameters out."""
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for number in range(2 + 3 * distributed.get_rank()):
            optimizer.zero_grad()
            loss(model, number).backward()
            optimizer.step()
    record["weights"] = weights(model)


def cannot_finalize(record: Record) -> None:
    """A reducer on which marking has no effect: more than a hundred parameters are missing, and stay so."""
    from ddpfix.patches.torch.internals import reducer

    reducer.mark_ready = lambda *_: None
    model = DistributedDataParallel(Stack(80))
    before = [float(p.detach().sum()) for p in model.parameters()]
    try:
        model(Plain().batch(0, 0), list(range(1, 80))).mean().backward()
        step(model)
    finally:
        record["moved"] = before != [float(p.detach().sum()) for p in model.parameters()]


def undone(record: Record) -> None:
    """After undo a model behaves as in plain torch again."""
    import ddpfix

    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        loss(model, number).backward()
        optimizer.step()
    record["problems"] = ddpfix.deactivate()
    assert SIZE
    for number in range(2):
        loss(model, number).backward()
