"""DDP and its loop on streams beside the default one; ranks and batches choose branches, so that marks are needed."""

from __future__ import annotations

from typing import Any, ContextManager, Dict, Iterator

import torch
from torch import nn

from tests.gpu import alike, card, world
from tests.gpu.alike import Trained, data, stack
from tests.gpu.modes import Mode

# Seconds for which the card is late with what comes next.
_LATE = 0.02


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    return alike.run(cell, KINDS[cell["kind"]])


class Branching(nn.Module):  # type: ignore[misc, unused-ignore]
    """Runs one of three branches."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.head = stack(2), stack(2)
        self.branches = nn.ModuleList(stack(2) for _ in range(3))

    def forward(self, values: torch.Tensor, branch: int) -> torch.Tensor:
        output: torch.Tensor = self.head(self.branches[branch](self.entry(values)))
        return output


class Built(Trained):
    """DDP is built on a side stream, as Lightning does, and trained on the default one."""

    def __init__(self, mode: Mode) -> None:
        self.late = card.Sleep()
        with card.side_stream():
            super().__init__(mode)

    def built(self) -> nn.Module:
        return Branching()

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        loss = self.model(data(number), (number + world.rank()) % 3).square().mean()
        self.late(_LATE)
        yield loss


class Whole(Built):
    """The whole loop is on a side stream."""

    def step(self, number: int) -> None:
        with card.side_stream():
            super().step(number)


class Two(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two branches on streams of their own, with outputs that come from both; a third one is chosen by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.unused = (stack(3) for _ in range(3))

    def forward(self, values: torch.Tensor) -> Any:
        return [_on(card.side_stream(), part, values) for part in (self.one, self.other)]


def _on(stream: ContextManager[None], part: Any, values: torch.Tensor) -> torch.Tensor:
    with stream:
        output: torch.Tensor = part(values)
    return output


class Outputs(Trained):
    """The outputs of one forward were computed on two side streams."""

    def __init__(self, mode: Mode) -> None:
        self.late = card.Sleep()
        super().__init__(mode)

    def built(self) -> nn.Module:
        return Two()

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        one, other = self.model(data(number))
        self.late(_LATE)
        yield one.square().mean() + other.mean()


KINDS: Dict[str, alike.Make] = {
    "DDP built on a side stream": Built,
    "whole loop on a side stream": Whole,
    "outputs of two streams": Outputs,
}
