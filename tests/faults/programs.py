"""Tiny models and their data, and what training them has to give: computed in one process, without DDP and ddpfix."""

from __future__ import annotations

import random
from typing import Any, Dict, Iterator, List, Optional

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

WIDTH, LAYERS, BATCH = 6, 3, 4


class Numbers(Dataset):
    """The batches of one rank; a number decides what is in them.

    Args:
        rank: whose they are.
        size: how many there are.
        seed: of the run.
        spoil: called with the number of each batch that is read.
    """

    def __init__(self, rank: int, size: int, seed: int, spoil: Any = None) -> None:
        self.rank, self.size, self.seed, self.spoil = rank, size, seed, spoil

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.spoil is not None:
            self.spoil(index)
        source = torch.Generator().manual_seed(1_000_003 * self.seed + 1009 * self.rank + index)
        return torch.randn(BATCH, WIDTH, generator=source, dtype=torch.float64)


class Model(nn.Module):
    """Some layers and a second head; what of it runs in a forward is up to ``at`` (see :func:`choice`).

    Args:
        program: one of ``PROGRAMS``.
    """

    def __init__(self, program: str) -> None:
        super().__init__()
        self.program = program
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head, self.extra = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)
        self.double()

    def forward(self, batch: torch.Tensor, at: Dict[str, Any]) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number not in at["skipped"]:
                again = self.program == "checkpoint"
                batch = torch.tanh(checkpoint(layer, batch, use_reentrant=False) if again else layer(batch))
        loss = self.head(batch).pow(2).mean()
        return loss + self.extra(batch).pow(2).mean() if at["extra"] else loss


def model(program: str, seed: int) -> Model:
    """The model with the parameters that all ranks begin with."""
    torch.manual_seed(seed)
    return Model(program)


def choice(program: str, seed: int, rank: int, index: int) -> Dict[str, Any]:
    """What a rank runs of the model for a batch: each rank decides by itself."""
    source = random.Random(f"{seed} {rank} {index}")
    skipped = [number for number in range(LAYERS) if source.random() < 0.4]
    extra = source.random() < 0.5
    return {
        "skipped": skipped if program == "layerdrop" else [],
        "extra": True if program in ("plain", "layerdrop") else extra,
    }


def accumulated(program: str) -> int:
    """How many batches make a step of the optimizer."""
    return 2 if program == "accumulation" else 1


def optimizer(parameters: Iterator[Any]) -> Any:
    """One that takes no gradient and one of zeros for the same: docs/unused-parameters.md says where which is given."""
    return torch.optim.SGD(parameters, lr=0.1)


def flat(trained: Model) -> torch.Tensor:
    """All parameters in a row."""
    return torch.cat([each.detach().reshape(-1) for each in trained.parameters()])


def reference(program: str, seed: int, size: int, steps: int) -> List[torch.Tensor]:
    """The parameters after each step: gradients of all ranks, averaged by hand; unused by all ranks means none."""
    trained = model(program, seed)
    stepper = optimizer(trained.parameters())
    found: List[torch.Tensor] = []
    for step in range(steps):
        sums: List[Optional[torch.Tensor]] = [None for _ in trained.parameters()]
        for rank in range(size):
            own = _gradients(trained, program, seed, rank, step)
            for number, gradient in enumerate(own):
                if gradient is not None:
                    before = sums[number]
                    sums[number] = gradient / size if before is None else before + gradient / size
        for parameter, gradient in zip(trained.parameters(), sums):
            parameter.grad = gradient
        stepper.step()
        found.append(flat(trained))
    return found


def _gradients(trained: Model, program: str, seed: int, rank: int, step: int) -> List[Optional[torch.Tensor]]:
    trained.zero_grad()
    for part in range(accumulated(program)):
        index = step * accumulated(program) + part
        trained(Numbers(rank, index + 1, seed)[index], choice(program, seed, rank, index)).backward()
    return [None if each.grad is None else each.grad.clone() for each in trained.parameters()]
