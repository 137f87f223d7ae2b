"""Training loops that call a module past its wrapper. ``edited_NAME`` has the call mended by hand."""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext
from typing import Any, Callable, Dict

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.late.parting import Record, batch, note, sgd

STEPS = 6
# How a loop calls the model: past its wrapper, or as torch asks for it.
Called = Callable[[Any], Any]


def net(norm: nn.Module) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), norm, nn.Tanh(), nn.Linear(8, 2))


def trained(record: Record, model: Any, loss: Callable[[int], Any], micro: int = 1) -> None:
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(micro):
            with model.no_sync() if part + 1 < micro else nullcontext():
                loss(micro * step + part).backward()
        optimizer.step()
        note(record, model)
        # Ranks whose gradients are not averaged stay in step by a number for the log.
        distributed.all_reduce(torch.ones(1))


def simple(record: Record, model: Any, call: Called) -> None:
    trained(record, model, lambda step: call(model)(batch(step)).pow(2).mean())


def twice(record: Record, model: Any, call: Called) -> None:
    trained(record, model, lambda step: (call(model)(batch(step)) * call(model)(batch(step + 1))).pow(2).mean())


def unequally_often(record: Record, model: Any, call: Called) -> None:
    """Each rank makes as many calls a step as it likes; the model has buffers."""

    def loss(step: int) -> Any:
        called = call(model)
        # Through the wrapper that would be broadcasts of which the other rank knows nothing.
        more = 0 if called is model else distributed.get_rank()
        parts = [called(batch(step + 10 * number)).pow(2).mean() for number in range(1 + more)]
        return parts[0] + 0.0 * sum(parts[1:], torch.zeros(()))

    trained(record, model, loss)


def accumulated(record: Record, model: Any, call: Called) -> None:
    trained(record, model, lambda step: call(model)(batch(step)).pow(2).mean(), micro=3)


def evaluated(record: Record, model: Any, call: Called) -> None:
    """The first rank evaluates by itself between two steps."""

    def loss(step: int) -> Any:
        if distributed.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                model.module(batch(step))
            model.train()
        return call(model)(batch(step)).pow(2).mean()

    trained(record, model, loss)


def recomputed(record: Record, model: Any, call: Called) -> None:
    def loss(step: int) -> Any:
        if call(model) is model:
            return model(batch(step)).pow(2).mean()
        return checkpoint(model.module, batch(step), use_reentrant=False).pow(2).mean()

    # It would take part in the statistics twice.
    model.module[1].track_running_stats = False
    trained(record, model, loss)


# What DDP reduces already, or nobody is to reduce: the call past the wrapper is right, and stays.


def beside(record: Record, model: Any, call: Called) -> None:
    """In one loss with a forward of the wrapper: DDP reduces both."""
    trained(record, model, lambda step: (model(batch(step)) + model.module(batch(step + 1))).pow(2).mean())


def alone(record: Record, model: Any, call: Called) -> None:
    """The first rank looks at what the model gives in training mode, for its log."""
    ours = sys.modules.get("ddpfix.patches.common.bypass")
    if ours is not None:
        ours._LIMIT = 1.0  # type: ignore[attr-defined]

    def loss(step: int) -> Any:
        if distributed.get_rank() == 0 and step % 2:
            record["looked"] = float(model.module(batch(step)).detach().sum())
        return model(batch(step)).pow(2).mean()

    trained(record, model, loss)


ROUTED: Dict[str, Callable[[Record, Any, Called], None]] = {
    each.__name__: each for each in (simple, twice, unequally_often, accumulated, evaluated, recomputed)
}
STAYING: Dict[str, Callable[[Record, Any, Called], None]] = {each.__name__: each for each in (beside, alone)}


def run(record: Record, name: str, call: Called) -> None:
    # Before 2.13 torch refuses two forwards of a model with buffers in front of one backward.
    model = DistributedDataParallel(net(nn.Identity() if name == "twice" else nn.BatchNorm1d(8)))
    {**ROUTED, **STAYING}[name](record, model, call)


# By name; the one with the call mended by hand is called ``edited_NAME``.
for _name in (*ROUTED, *STAYING):
    globals()[_name] = functools.partial(run, name=_name, call=lambda model: model.module)
    globals()[f"edited_{_name}"] = functools.partial(run, name=_name, call=lambda model: model)
