"""One rank, under torch elastic: a tiny model under DDP, in which a step fails, or whose second rank is killed."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

HOW = sys.argv[1]
STEPS, LAST = 12, 8


class Branches(nn.Module):
    """Two branches, of which a forward leaves one out from some step on."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.rare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, values: torch.Tensor, both: bool) -> torch.Tensor:
        out = self.common(values)
        return (self.rare(out) if both else out).pow(2).mean()


def main() -> None:
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Branches())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, STEPS + 1):
        if HOW == "killed" and step == LAST and distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.randn(2, 4), HOW == "killed" or step < LAST).backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
