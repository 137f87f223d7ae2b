"""Loops that call a module past its wrapper, or have the call mended; and two forwards before one backward."""

from __future__ import annotations

import copy
import functools
import sys
from contextlib import nullcontext
from typing import Any, Callable, Dict, Optional

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.late.loops.loop import average
from tests.late.parting import Record, batch, logged, sums, trained

# How a loop calls the model: past its wrapper, or as torch asks for it.
Called = Callable[[Any], Any]


def net(norm: nn.Module) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), norm, nn.Tanh(), nn.Linear(8, 2))


# A loss of a model, which the loop calls in its way.
Loss = Callable[[Any, int, Called], Any]


def simple(model: Any, step: int, call: Called) -> Any:
    return call(model)(batch(step)).pow(2).mean()


def twice(model: Any, step: int, call: Called) -> Any:
    return (call(model)(batch(step)) * call(model)(batch(step + 1))).pow(2).mean()


def unequally_often(model: Any, step: int, call: Called) -> Any:
    """Each rank makes as many calls a step as it likes; the model has buffers."""
    called = call(model)
    # Through the wrapper that would be broadcasts of which the other rank knows nothing.
    more = 0 if called is model else distributed.get_rank()
    parts = [called(batch(step + 10 * number)).pow(2).mean() for number in range(1 + more)]
    return parts[0] + 0.0 * sum(parts[1:], torch.zeros(()))


def evaluated(model: Any, step: int, call: Called) -> Any:
    """The first rank evaluates by itself between two steps."""
    if distributed.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            model.module(batch(step))
        model.train()
    return simple(model, step, call)


def recomputed(model: Any, step: int, call: Called) -> Any:
    # It would take part in the statistics twice.
    model.module[1].track_running_stats = False
    if call(model) is model:
        return simple(model, step, call)
    return checkpoint(model.module, batch(step), use_reentrant=False).pow(2).mean()


# What DDP reduces already, or nobody is to reduce: the call past the wrapper is right, and stays.


def beside(model: Any, step: int, call: Called) -> Any:
    """In one loss with a forward of the wrapper: DDP reduces both."""
    return (model(batch(step)) + model.module(batch(step + 1))).pow(2).mean()


def alone(model: Any, step: int, call: Called) -> Any:
    """The first rank looks at what the model gives in training mode, for its log."""
    ours = sys.modules.get("ddpfix.patches.common.bypass")
    if ours is not None:
        ours._LIMIT = 1.0  # type: ignore[attr-defined]
    if distributed.get_rank() == 0 and step % 2:
        float(model.module(batch(step)).detach().sum())
    return model(batch(step)).pow(2).mean()


ROUTED: Dict[str, Loss] = {
    **{each.__name__: each for each in (simple, twice, unequally_often, evaluated, recomputed)},
    "accumulated": simple,
}
STAYING = {each.__name__: each for each in (beside, alone)}


def run(record: Record, name: str, mended: bool = False) -> None:
    """Train; ranks whose gradients are not averaged stay in step by a number for the log."""
    micro = 3 if name == "accumulated" else 1

    def backward(model: Any, step: int) -> None:
        for part in range(micro):
            with model.no_sync() if part + 1 < micro else nullcontext():
                loss = {**ROUTED, **STAYING}[name]
                loss(model, micro * step + part, lambda model: model if mended else model.module).backward()

    # Before 2.13 torch refuses two forwards of a model with buffers in front of one backward.
    norm = nn.Identity() if name == "twice" else nn.BatchNorm1d(8)
    trained(record, logged, backward=backward, module=lambda: net(norm), count=6)


# Two forwards of a model with buffers before one backward.
STEPS = 4


class Scaled(nn.Module):
    """Linear layers around a table of constants, which each forward may change, and a normalization."""

    def __init__(self, norm: Optional[nn.Module] = None, moves: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last, self.moves = nn.Linear(4, 4), norm, nn.Linear(4, 2), moves
        self.register_buffer("table", torch.linspace(0.5, 1.5, 4))

    def forward(self, inputs: Any) -> Any:
        if self.moves:
            self.table += 0.1 * (distributed.get_rank() + 1)
        hidden = self.first(inputs) * self.table
        return self.last(hidden if self.norm is None else self.norm(hidden))


class Renorm(nn.BatchNorm1d):
    """A normalization of a user's own, whose backward reads the running statistics in training mode as well."""

    def forward(self, inputs: Any) -> Any:
        super().forward(inputs)
        return inputs * self.running_var


def batches(step: int) -> Any:
    generator = torch.Generator().manual_seed(2 * step + distributed.get_rank())
    return torch.randn(2, 8, 4, generator=generator)


def loss(model: Any, step: int, between: Callable[[Any], Any]) -> Any:
    one, other = batches(step)
    if not isinstance(model, DistributedDataParallel):
        broadcast(model)
    first = model(one)
    between(getattr(model, "module", model))
    if not isinstance(model, DistributedDataParallel):
        broadcast(model)
    return first.pow(2).mean() + (model(other) - 1).pow(2).mean()


def broadcast(model: Any) -> None:
    """What DDP does before each forward, without a trace in the graph."""
    for buffer in model.buffers():
        rank_0 = buffer.clone()
        distributed.broadcast(rank_0, 0)
        buffer.data.copy_(rank_0)


def train(record: Record, build: Callable[[], Any], between: Callable[[Any], Any] = id) -> None:
    """Train under DDP, and a copy by hand: gradients averaged, rank 0's buffers in front of each forward.

    Args:
        between: is done between the two forwards.
    """
    model = build()
    alone = copy.deepcopy(model)
    wrapped = DistributedDataParallel(model)
    record["weights"], record["expected"] = [], []
    for step in range(STEPS):
        wrapped.zero_grad()
        loss(wrapped, step, between).backward()
        torch.optim.SGD(wrapped.parameters(), lr=0.1).step()
        record["weights"].append(sums(model))
        alone.zero_grad()
        loss(alone, step, between).backward()
        average(list(alone.parameters()))
        torch.optim.SGD(alone.parameters(), lr=0.1).step()
        record["expected"].append(sums(alone))


def toggled(model: Any) -> None:
    model.norm.train(not model.norm.training)


def moved_apart(model: Any) -> None:
    model.table.data += distributed.get_rank()


PROGRAMS: Dict[str, Callable[[Record], None]] = {
    # Running statistics, which differ between ranks after each forward.
    "statistics": functools.partial(train, build=lambda: Scaled(nn.BatchNorm1d(4))),
    # Statistics of an instance normalization, which writes them through copies.
    "instances": functools.partial(
        train,
        build=lambda: nn.Sequential(Scaled(), nn.Unflatten(1, (1, 2)), nn.InstanceNorm1d(1, track_running_stats=True)),
    ),
    # A table that the backward reads, and that never changes.
    "table": functools.partial(train, build=Scaled),
    # The first forward in evaluation mode, whose backward reads the running statistics.
    "evaluated": functools.partial(train, build=lambda: Scaled(nn.BatchNorm1d(4).eval()), between=toggled),
    # A table that each forward changes: the gradient of the earlier forward would be another one.
    "moving": functools.partial(train, build=lambda: Scaled(moves=True)),
    # A table that differs between ranks when it is broadcast, although no forward has changed it.
    "parted": functools.partial(train, build=Scaled, between=moved_apart),
    # Running statistics that the backward reads in training mode.
    "own_normalization": functools.partial(train, build=lambda: Scaled(Renorm(4))),
}
