"""Two forwards of a model with buffers before one backward; each function fills ``record``."""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, Dict, Optional

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.late.loops.loop import average
from tests.late.parting import Record, sums

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
