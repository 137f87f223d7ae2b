"""Programs that change a model after it was wrapped, and the same ones that then wrap it again, as torch asks for.

Each function fills ``record``.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.late.parting import batch, frozen_net, net, second_rank

Record = Dict[str, Any]
STEPS = 8


class Program:
    """A model that is changed after the fourth step.

    Args:
        record: what is noted.
        again: whether it is wrapped again then.
        options: of DistributedDataParallel.
    """

    def __init__(self, record: Record, again: bool, inner: Any, **options: Any) -> None:
        self.again, self.options, self.steps = again, options, record.setdefault("steps", [])
        self.model = DistributedDataParallel(inner, **options)
        self.optimizer = torch.optim.SGD([p for p in inner.parameters() if p.requires_grad], lr=0.1)

    def train(self, change: Callable[[], Any], micro: int = 1, clip: bool = False) -> None:
        for step in range(STEPS):
            if step == 4:
                self._change(change)
            self.optimizer.zero_grad()
            for number in range(micro):
                last = number == micro - 1
                with contextlib.nullcontext() if last else self.model.no_sync():
                    self.model(batch(micro * step + number)).pow(2).mean().backward()
            if clip:
                nn.utils.clip_grad_norm_(self.model.module.parameters(), 0.05)
            self.optimizer.step()
            state = self.model.module.state_dict().values()
            self.steps.append([float(each.double().sum()) for each in state])

    def _change(self, change: Callable[[], Any]) -> None:
        change()
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        new = [p for p in self.model.module.parameters() if p.requires_grad and id(p) not in held]
        if new:
            self.optimizer.add_param_group({"params": new})
        if self.again:
            self.model = DistributedDataParallel(self.model.module, **self.options)


def _set_free(program: Program) -> Callable[[], Any]:
    return lambda: program.model.module[2].requires_grad_(True)


def _new_layer(program: Program) -> Callable[[], Any]:
    def change() -> None:
        # Ranks make different ones.
        torch.manual_seed(5 + distributed.get_rank())
        program.model.module[2] = nn.Linear(8, 3)

    return change


def set_free(record: Record, again: bool = False) -> None:
    """A layer is trained that was frozen, with micro-batches and clipping."""
    program = Program(record, again, frozen_net())
    program.train(_set_free(program), micro=2, clip=True)


def replaced(record: Record, again: bool = False) -> None:
    """The last layer is replaced, which plain torch ends with an error."""
    program = Program(record, again, net())
    program.train(_new_layer(program), clip=True)


def replaced_with_flag(record: Record, again: bool = False) -> None:
    """The same with the flag, where plain torch says nothing."""
    program = Program(record, again, net(), find_unused_parameters=True)
    program.train(_new_layer(program))


class Branches(nn.Module):
    """A new branch is used by one rank, another one by none."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.branches = net(), nn.ModuleList()

    def forward(self, inputs: Any) -> Any:
        taken = [branch(inputs) for branch in self.branches[:1] if second_rank()]
        return sum(taken, self.net(inputs))


def branch(record: Record, again: bool = False) -> None:
    """Branches are added that some ranks leave out."""
    torch.manual_seed(0)
    program = Program(record, again, Branches(), find_unused_parameters=True)
    program.train(lambda: program.model.module.branches.extend([nn.Linear(4, 2), nn.Linear(4, 2)]))
    record["none"] = [p.grad is None for p in program.model.module.branches.parameters()]


def one_rank(record: Record) -> None:
    """A layer is set free on one rank only."""
    program = Program(record, False, frozen_net())
    free = _set_free(program)
    program.train(lambda: free() if second_rank() else None)


CHANGES = ("set_free", "replaced", "replaced_with_flag", "branch")
for _name in CHANGES:
    vars()[f"{_name}_again"] = functools.partial(vars()[_name], again=True)
