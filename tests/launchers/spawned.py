"""Two processes that a program starts: ranks, by ``mp.spawn`` or Lightning's own launcher, or what imports torch."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn


class Skipping(nn.Module):
    """Leaves its second layer out, which ddpfix has a line for."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def rank(number: int, store: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    model = nn.parallel.DistributedDataParallel(Skipping())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()


def child(number: int) -> None:
    torch.ones(1)


if __name__ == "__main__" and len(sys.argv) == 1:
    multiprocessing.spawn(child, nprocs=2)  # type: ignore[no-untyped-call]
    print("trained")
elif __name__ == "__main__":
    import ddpfix.auto  # noqa: F401

    if sys.argv[1] == "spawn":
        multiprocessing.spawn(rank, args=(str(Path(sys.argv[2]) / "store"),), nprocs=2)  # type: ignore[no-untyped-call]
    else:
        from tests.support import small_lightning

        small_lightning.fit(Skipping(), (12, 2))
