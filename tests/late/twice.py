"""A module in several reentrant checkpoints of one step, under DDP without the flag."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any, Callable, Dict, Optional

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from tests.late.parting import Record, batch, note, sgd

STEPS = 4


class Halved(CheckpointFunction):  # type: ignore[misc]
    """A checkpoint of the user's own, whose backward returns half of the gradient."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = CheckpointFunction.backward(ctx, *gradients)
        return tuple(each * 0.5 if isinstance(each, torch.Tensor) else each for each in found)


class Net(nn.Module):
    """A block that is checkpointed between two layers that are not.

    Args:
        kind: of checkpoint.
        uses: how often the block is used in a forward.
    """

    def __init__(self, kind: Any = checkpoint, uses: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 6))
        self.kind, self.uses = kind, uses

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.first(x)
        if self.kind is Halved:
            return self.last(Halved.apply(self.block, True, hidden))
        for _ in range(self.uses):
            hidden = checkpoint(self.block, hidden, use_reentrant=True)
        return self.last(hidden)


def siamese(model: Any, step: int) -> Any:
    return (model(batch(step)) - model(batch(step + 50))).pow(2).mean()


def single(model: Any, step: int) -> Any:
    return model(batch(step)).pow(2).mean()


def looked_at(model: Any, step: int) -> Any:
    """The first forward is alive in the backward, which does not come to it."""
    looked_at.output = model(batch(step + 50))  # type: ignore[attr-defined]
    return model(batch(step)).pow(2).mean()


def trained(
    record: Record,
    loss: Callable[[Any, int], Any] = single,
    kind: Any = checkpoint,
    uses: int = 1,
    micro: int = 1,
    ddp: Optional[Dict[str, Any]] = None,
) -> None:
    model = DistributedDataParallel(Net(kind, uses), **(ddp or {}))
    optimizer, record["steps"] = sgd(model), []
    torch.manual_seed(5 + distributed.get_rank())
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(micro):
            with model.no_sync() if part + 1 < micro else nullcontext():
                loss(model, micro * step + part).backward()
        optimizer.step()
        note(record, model)


# Plain torch ends these.
REFUSED: Dict[str, Dict[str, Any]] = {
    "in_two_forwards": {"loss": siamese},
    "in_one_forward": {"uses": 3},
    "accumulated": {"loss": siamese, "micro": 2},
    "views": {"loss": siamese, "ddp": {"gradient_as_bucket_view": True}},
}
# Plain torch trains these.
RIGHT: Dict[str, Dict[str, Any]] = {
    "static": {"uses": 2, "ddp": {"static_graph": True}},
    "looked_at": {"loss": looked_at},
    "once": {},
    "halved": {"kind": Halved},
}
for _name, _loop in {**REFUSED, **RIGHT}.items():
    globals()[_name] = functools.partial(trained, **_loop)
