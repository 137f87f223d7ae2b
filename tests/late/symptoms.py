"""Failures of docs/symptoms.md that no other file has; each function fills ``record``."""

from __future__ import annotations

import time
from typing import Any, Dict

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.late.diagnosed import Net, trained, usual
from tests.late.toolkit_loops import data, fit

Record = Dict[str, Any]


def lightning_unused(record: Record) -> None:
    """A branch that is never taken, by Lightning's automatic optimization."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any) -> Any:
            return self.net(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    fit(Module(), data(), max_steps=3)


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
