"""Training loops with more than one forward or backward a step, whose answers autograd gives in threads of a device."""

from __future__ import annotations

from typing import Any, Dict, Iterator

import torch
from torch import nn

from tests.gpu import alike
from tests.gpu.alike import WIDTH, Program, Trained, data, held, sgd, stack, wrapped
from tests.gpu.modes import Mode


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    return alike.run(cell, KINDS[cell["kind"]])


class Buffered(nn.Module):  # type: ignore[misc, unused-ignore]
    """Has twelve buffers that each forward changes and adds: torch writes to them between two forwards without harm."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(12))
        for part in self.parts:
            part.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            with torch.no_grad():
                part.shift.mul_(0.9).add_(values.mean(0), alpha=0.1)
            values = torch.tanh(part(values) + part.shift)
        return values


class Siamese(Trained):
    """Two forwards of one model before the backward, as in DPO and siamese networks."""

    def __init__(self, mode: Mode) -> None:
        super().__init__(mode)
        # Buffers are each rank's own until the next forward: what parameters become depends on them.
        self.tensors = list(self.model.parameters())

    def built(self) -> nn.Module:
        return Buffered()

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        yield (self.model(data(number)) - self.model(data(number, 1))).square().mean()


class Gan(Program):
    """Two wrapped models that train in turns; the critic gets gradients in both turns."""

    def __init__(self, mode: Mode) -> None:
        self.maker, self.critic = wrapped(stack(4), mode), wrapped(stack(4, 1), mode)
        self.optimizers = sgd(self.maker), sgd(self.critic)
        self.tensors = held(self.maker, self.critic)

    def step(self, number: int) -> None:
        made, judged = self.optimizers
        judged.zero_grad(set_to_none=True)
        fake = self.maker(data(number)).detach()
        (self.critic(fake).mean() - self.critic(data(number, 1)).mean()).backward()
        judged.step()
        made.zero_grad(set_to_none=True)
        (-self.critic(self.maker(data(number, 2))).mean()).backward()
        made.step()


class TwoBackwards(Trained):
    """A forward and a backward twice before the optimizer's step, all of them averaged."""

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        for part in range(2):
            yield self.model(data(number, part)).square().mean()


class Penalty(Trained):
    """A gradient penalty: the loss has a gradient in it (``create_graph``)."""

    def built(self) -> nn.Module:
        return stack(4, 1)

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        given = data(number).requires_grad_()
        output = self.model(given)
        slope = torch.autograd.grad(output.sum(), given, create_graph=True)[0]
        yield output.mean() + slope.square().mean()


class Accumulation(Trained):
    """Two micro-batches a step, the first one without a reduction, with enough steps for looks of the drift watch."""

    def built(self) -> nn.Module:
        return stack(6)

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        with self.model.no_sync():
            yield self.model(data(number)).square().mean()
        yield self.model(data(number, 1)).square().mean()


KINDS: Dict[str, alike.Make] = {
    "siamese, 12 buffers": Siamese,
    "GAN": Gan,
    "two backwards": TwoBackwards,
    "gradient penalty": Penalty,
    "accumulation": Accumulation,
}
