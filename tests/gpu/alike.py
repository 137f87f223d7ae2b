"""Programs that torch trains rightly by itself: each mode has to train them the same, bit for bit, without a wait more.

A program is a class whose instance takes steps. It is run in each mode as a cell of its own, and the cells are compared
by :mod:`tests.gpu.sections`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List

import torch
from torch import nn

from tests.gpu import card, syncs, training, world
from tests.gpu.modes import Mode, active

WIDTH = 16


class Program:
    """One program.

    Attributes:
        tensors: what is compared after each step.
        said: half a sentence for the table.
    """

    tensors: List[torch.Tensor]
    said = ""

    def step(self, number: int) -> None:
        raise NotImplementedError


class Trained(Program):
    """One wrapped model, trained by SGD on the losses of a step, one backward after the other."""

    def __init__(self, mode: Mode) -> None:
        self.model = wrapped(self.built(), mode)
        self.optimizer, self.tensors = sgd(self.model), held(self.model)

    def built(self) -> nn.Module:
        return stack(4)

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        yield self.model(data(number)).square().mean()

    def step(self, number: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for loss in self.losses(number):
            loss.backward()
        self.optimizer.step()


Make = Callable[[Mode], Program]


def run(cell: Dict[str, Any], make: Make) -> Dict[str, Any]:
    """By step a digest of what was trained, and on a card the waits of two more steps."""
    with active(cell["mode"]) as mode:
        torch.manual_seed(5)
        program = make(mode)
        torch.manual_seed(100 + world.rank())
        return _found(program, cell["options"]["steps"])


def _found(program: Program, steps: int) -> Dict[str, Any]:
    digests = []
    for number in range(steps):
        program.step(number)
        digests.append(world.digest(program.tensors))
    finite = all(bool(torch.isfinite(each).all()) for each in program.tensors)
    counts = syncs.profiled(lambda: _two(program, steps)) if card.here() else {}
    return {"steps": digests, "finite": finite, "counts": counts, "said": program.said, "wrong": []}


def _two(program: Program, number: int) -> None:
    program.step(number)
    program.step(number + 1)


def wrapped(model: nn.Module, mode: Mode, cap: float = 0.01) -> Any:
    """Under DDP, on this rank's device, with many buckets."""
    return training.wrapped(model.to(world.device()).train(), mode, cap)


def stack(depth: int, out: int = WIDTH) -> nn.Module:
    layers = [layer for _ in range(depth - 1) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, out))


class Apart(nn.Module):  # type: ignore[misc, unused-ignore]
    """Its second part is on a device of its own."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.other(self.one(values).to(next(self.other.parameters()).device))
        return output


def data(number: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10_000 * part + 100 * world.rank() + number)
    return torch.randn(4, WIDTH, generator=generator).to(world.device())


def sgd(*models: Any) -> Any:
    return torch.optim.SGD([each for model in models for each in model.parameters()], lr=0.05)


def held(*models: Any) -> List[torch.Tensor]:
    """Parameters and buffers."""
    tensors: Iterable[Any] = (each for model in models for each in (*model.parameters(), *model.buffers()))
    return list(tensors)
