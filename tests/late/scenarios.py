"""What ddpfix leaves to torch, what it does where it cannot do its work, and failures of docs/symptoms.md.

Each function fills ``record``.
"""

from __future__ import annotations

import datetime
import gc
import time
from importlib import import_module
from typing import Any, Callable, Dict

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.late.diagnosed import Net, trained, usual
from tests.late.loops.loop import SIZE
from tests.late.loops.tiny_model import Apart, Blocks, uneven
from tests.late.parting import Record, sums


def run(scenario: Dict[str, Any]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=scenario["patience"]))
    torch.manual_seed(3)
    file, _, name = scenario["function"].rpartition(":")
    home = globals() if not file else vars(import_module(file if "." in file else f"tests.late.{file}"))
    function: Callable[..., None] = home.get("PROGRAMS", {}).get(name) or home[name]
    function(scenario["found"], **scenario["given"])


def batch(number: int) -> Any:
    return torch.randn(4, SIZE, generator=torch.Generator().manual_seed(7 * distributed.get_rank() + 31 * number))


def wrapped(**options: Any) -> Any:
    return DistributedDataParallel(Blocks(), **options)


def loss(model: Any, number: int) -> Any:
    return model(batch(number), uneven(distributed.get_rank(), number)).pow(2).mean()


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def explicit_false(record: Record) -> None:
    """An explicit False of the user stands: he gets what plain torch does."""
    model = wrapped(find_unused_parameters=False)
    for number in range(2):
        loss(model, number).backward()
        sgd(model).step()


def static(record: Record) -> None:
    """static_graph with parameters that are the same in each step: torch alone handles it."""
    model = wrapped(static_graph=True)
    for number in range(3):
        model(batch(number), [1, 2]).mean().backward()
    from ddpfix.patches.torch.pipeline import ddp
    from ddpfix.patches.torch.unused.states import REDUCTION

    known = ddp.of(model)
    record["armed"] = known is None or REDUCTION.of(known) is not None


def static_under_no_sync(record: Record) -> None:
    """static_graph where gradients are accumulated, with a block that is never used."""
    model = wrapped(static_graph=True)
    for number in range(2):
        with model.no_sync():
            model(batch(number), [1]).mean().backward()
        model(batch(number), [1]).mean().backward()
        sgd(model).step()


def parameter_returned(record: Record) -> None:
    """An output that is a parameter itself."""

    class Returning(Blocks):
        def forward(self, x: Any, skips: Any = ()) -> Any:
            return super().forward(x, skips), self.blocks[0].bias

    model = DistributedDataParallel(Returning())
    for number in range(4):
        model.zero_grad()
        output, bias = model(batch(number), [1])
        (output.mean() + bias.sum()).backward()
        sgd(model).step()
    record["hooks"] = len(model.module.blocks[0].bias._backward_hooks or {})


def other_model_dropped(record: Record) -> None:
    """A step has one backward fewer than those before it, and another model is given up before the optimizer steps."""
    model, other = DistributedDataParallel(Apart()), wrapped()
    loss(other, 0).backward()
    for number in range(4):
        model.zero_grad()
        values = model(batch(number))
        for value in values[: 1 if number == 3 else 2]:
            value.mean().backward()
        if number == 3:
            del other
            gc.collect()
        sgd(model).step()
    record["weights"] = sums(model)


def optimizer_within(record: Record) -> None:
    """An optimizer for each parameter steps within the backward, before anything is averaged."""
    model = wrapped()

    def stepping(optimizer: Any) -> Any:
        return lambda parameter: optimizer.step()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(stepping(torch.optim.SGD([parameter], lr=0.1)))
    for number in range(3):
        loss(model, number).backward()


def cannot_finalize(record: Record) -> None:
    """A reducer on which marking has no effect: more than a hundred parameters are missing, and stay so."""
    from ddpfix.patches.torch.internals import reducer

    reducer.mark_ready = lambda *_: None
    model = DistributedDataParallel(Blocks(80))
    before = sums(model)
    try:
        model(batch(0), range(1, 80)).mean().backward()
        sgd(model).step()
    finally:
        record["moved"] = before != sums(model)


# Failures of docs/symptoms.md that no other file has.


def lightning_unused(record: Record) -> None:
    """A branch that is never taken, by Lightning's automatic optimization."""
    from tests.support import small_lightning

    small_lightning.fit_here(small_lightning.Module(Net()), small_lightning.batches(12, 4), max_steps=3)


def flag_for_nothing(record: Record) -> None:
    """The program's own flag, in a model that uses all of its parameters."""
    trained(record, DistributedDataParallel(Net(aux=False), find_unused_parameters=True), usual)


def other_models(record: Record) -> None:
    """Rank 1 has a layer more."""
    DistributedDataParallel(nn.Sequential(*(nn.Linear(2, 2) for _ in range(5 + distributed.get_rank()))))


def backward_twice(record: Record) -> None:
    """Two losses share the graph of one output."""
    output = DistributedDataParallel(Net(aux=False))(torch.ones(2, 4)).tanh()
    output.sum().backward()
    output.mean().backward()


def late_rank(record: Record) -> None:
    """One rank is busy for longer than the process group waits."""
    model = DistributedDataParallel(nn.Linear(2, 2))
    for number in range(3):
        if distributed.get_rank() == 1 and number == 2:
            time.sleep(11)
        model(torch.ones(1, 2)).sum().backward()


def activated_late(record: Record) -> None:
    """ddpfix is imported when the model is wrapped."""
    model = DistributedDataParallel(nn.Linear(2, 2))
    import ddpfix

    ddpfix.activate()
    model(torch.ones(1, 2)).sum().backward()
