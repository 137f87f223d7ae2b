"""Models of which some parameters are used by some ranks only, by none, or not yet, with every kind of optimizer.

Each fills ``record`` with the parameters, the gradients and the optimizer's state after each step, in bits. It is given
keywords of DDP.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any, Callable, Dict, List, Optional

import torch
from packaging.version import Version
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.late.loops.loop import numbers
from tests.late.parting import Record, sums

STEPS = 12
RELEASE = Version(torch.__version__)


OPTIMIZERS: Dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "foreach": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1, foreach=True),
    # None of torch's is fused on a CPU before 2.4.
    "fused": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1, fused=Version("2.4") <= RELEASE or None),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05, weight_decay=0.01),
}


class Net(nn.Module):
    """A trunk and parts of which a step may leave out each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.trunk = nn.Linear(6, 6)
        self.aux = nn.Linear(6, 2)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, aux: bool = False, frozen: bool = False, experts: Any = ()) -> Any:
        with torch.no_grad() if frozen else contextlib.nullcontext():
            hidden = self.encoder(x)
        hidden = torch.tanh(self.trunk(hidden))
        for number in experts:
            hidden = hidden + self.experts[number](hidden)
        out = self.head(hidden)
        return (out, self.aux(hidden)) if aux else out


def batch(step: int, part: int = 0) -> torch.Tensor:
    seed = 1000 * part + 10 * step + distributed.get_rank()
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))


def loss_of(output: Any) -> torch.Tensor:
    parts = output if isinstance(output, tuple) else (output,)
    return sum(part.square().mean() for part in parts)  # type: ignore[return-value]


# What a step's forward gets, by the number of the step (from 0), the rank and the world size.
Way = Callable[[int, int, int], Dict[str, Any]]
WAYS: Dict[str, Way] = {
    "never": lambda step, rank, size: {},
    "frozen_at_first": lambda step, rank, size: {"frozen": step < 6, "aux": True, "experts": range(4)},
    "every_third": lambda step, rank, size: {"aux": step % 3 == 0, "experts": range(4)},
    "but_every_third": lambda step, rank, size: {"aux": step % 3 != 2, "experts": range(4)},
    "late": lambda step, rank, size: {"aux": step < 7, "experts": range(4)},
    "one_rank": lambda step, rank, size: {"aux": rank == 0, "experts": range(4)},
    "one_rank_later": lambda step, rank, size: {"aux": rank == size - 1 or step < 5, "experts": range(4)},
    "experts": lambda step, rank, size: {"aux": True, "experts": [(step + rank) % 3]},
}


def way(name: str, optimizer: str = "adamw", **how: Any) -> Callable[..., None]:
    return functools.partial(train, WAYS[name], OPTIMIZERS[optimizer], **how)


def train(
    way: Way,
    optimizer_of: Callable[[Any], torch.optim.Optimizer],
    record: Record,
    accumulate: int = 1,
    to_none: bool = True,
    clipped: bool = False,
    averaged: bool = False,
    reset: int = 1,
    joins: bool = False,
    **ddp: Any,
) -> None:
    """Train; of ``accumulate`` micro-batches the last is averaged, and gradients are reset each ``reset`` steps."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    model = DistributedDataParallel(Net(), **ddp)
    optimizer = optimizer_of(model.parameters())
    average = copy.deepcopy(model.module)
    with model.join() if joins else contextlib.nullcontext():
        for step in range(STEPS - (3 * rank if joins else 0)):
            if step % reset == 0:
                optimizer.zero_grad(set_to_none=to_none)
            for part in range(accumulate):
                with model.no_sync() if part < accumulate - 1 else contextlib.nullcontext():
                    arguments = way(step + part, rank, size)
                    loss_of(model(batch(step, part), **arguments)).backward()
            if clipped:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            optimizer.step()
            if averaged:
                with torch.no_grad():
                    for mean, p in zip(average.parameters(), model.module.parameters()):
                        mean.lerp_(p, 0.1)
            record.setdefault("steps", []).append(_bits(model, gradients, optimizer, average))
            record.setdefault("idle", []).append([each is None for each in gradients])
            record.setdefault("sums", []).append(sums(model))


def _bits(model: Any, gradients: List[Optional[torch.Tensor]], optimizer: Any, average: Any) -> List[str]:
    """Return the bits of the parameters, of the gradients, and of the optimizer's state and the average."""
    held = [each for p in model.parameters() for _, each in sorted(optimizer.state.get(p, {}).items())]
    state = [torch.as_tensor(each) for each in held if each is not None]
    known = [each for each in gradients if each is not None]
    return [numbers(model.parameters()), numbers(known), numbers([*state, *average.parameters()])]


PROGRAMS: Dict[str, Callable[..., None]] = {
    **{f"{name}_{optimizer}": way(name, optimizer) for name in WAYS for optimizer in ("adamw", "momentum")},
    **{f"every_third_{optimizer}": way("every_third", optimizer) for optimizer in OPTIMIZERS},
    "accumulated": way("every_third", accumulate=3),
    "accumulated_zeros": way("experts", "momentum", accumulate=2, to_none=False),
    "zeros": way("frozen_at_first", to_none=False),
    "clipped": way("experts", clipped=True),
    "average": way("late", averaged=True),
    "summed": way("every_third", "momentum", reset=4),
    # Not "every_third": under join() a rank without batches hands on what others have used in the step before, so that
    # with the flag a parameter counts as used once it was.
    "joined": way("one_rank", joins=True),
    "joined_never": way("never", joins=True),
    "joined_late": way("late", joins=True),
}
