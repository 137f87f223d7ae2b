"""Programs that evaluate a model with buffers under DDP; each function fills ``record``."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

Record = Dict[str, Any]


class Program:
    """A model that is trained, and evaluated by some ranks.

    Args:
        record: what is noted.
        own: whether the program evaluates the module, and not the wrapper, as people write it who know.
    """

    def __init__(self, record: Record, own: bool) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.evaluated: Any = self.model.module if own else self.model
        self.record, self.rank = record, int(distributed.get_rank())
        record.update(steps=[], outputs=[])

    def train(self, steps: int = 2) -> None:
        for _ in range(steps):
            number = len(self.record["steps"])
            batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * number + self.rank)) + self.rank
            self.optimizer.zero_grad()
            self.model(batch).pow(2).mean().backward()
            self.optimizer.step()
            state = self.model.module.state_dict().values()
            self.record["steps"].append([float(each.double().sum()) for each in state])

    def evaluate(self, batches: int = 3) -> None:
        self.model.eval()
        with torch.no_grad():
            for number in range(batches):
                self.record["outputs"].append(float(self.evaluated(torch.full((3, 4), number + 1.0)).sum()))
        self.model.train()


def _first_rank(program: Program) -> None:
    """The first rank evaluates now and then, and at the end, while the other one waits at a barrier."""
    for _ in range(3):
        program.train()
        if program.rank == 0:
            program.evaluate()
        distributed.barrier()


def _last_rank(program: Program) -> None:
    """The same on another rank than the one whose buffers are broadcast."""
    for _ in range(3):
        program.train()
        if program.rank == 1:
            program.evaluate()
        distributed.barrier()


def _after_join(program: Program) -> None:
    """Ranks have different numbers of batches to train on, and to evaluate with."""
    for _ in range(2):
        with program.model.join():
            program.train(2 + program.rank)
        program.evaluate(4 - program.rank)
        distributed.barrier()


def _together(program: Program) -> None:
    """All ranks evaluate."""
    for _ in range(3):
        program.train()
        program.evaluate()


PROGRAMS: Dict[str, Callable[[Program], None]] = {
    "first_rank": _first_rank,
    "last_rank": _last_rank,
    "after_join": _after_join,
    "together": _together,
}


def _run(program: Callable[[Program], None], own: bool, record: Record) -> None:
    program(Program(record, own))


for _name, _program in PROGRAMS.items():
    vars()[_name] = lambda record, _program=_program: _run(_program, False, record)
    vars()[f"own_{_name}"] = lambda record, _program=_program: _run(_program, True, record)
