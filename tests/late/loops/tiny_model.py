"""Tiny models that programs train."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple

import torch
from torch import nn

from tests.late.loops.loop import SIZE, Loop


def mlp(out: int = SIZE) -> nn.Sequential:
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, out))


def loss(output: torch.Tensor) -> torch.Tensor:
    return (output - 0.5).pow(2).mean()


class Heads(nn.Module):
    """A trunk, and heads of which the caller says which are used."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.trunk = nn.Linear(SIZE, SIZE)
        self.heads = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(heads))

    def forward(self, x: torch.Tensor, which: Optional[Sequence[int]] = None) -> Tuple[torch.Tensor, ...]:
        h = self.trunk(x).tanh()
        return tuple(self.heads[index](h) for index in (range(len(self.heads)) if which is None else which))


class Apart(nn.Module):
    """Parts that share nothing, each with an output of its own."""

    def __init__(self, parts: int = 2) -> None:
        super().__init__()
        self.parts = nn.ModuleList(mlp() for _ in range(parts))

    def forward(self, x: torch.Tensor, which: Optional[Sequence[int]] = None) -> Tuple[torch.Tensor, ...]:
        return tuple(self.parts[index](x) for index in (range(len(self.parts)) if which is None else which))


class Blocks(nn.Module):
    """Blocks in a row, of which the caller may have some skipped."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(depth))

    def forward(self, x: torch.Tensor, skips: Sequence[int] = ()) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            if index not in skips:
                x = block(x).tanh()
        return x


def uneven(rank: int, step: int) -> Tuple[int, ...]:
    """Blocks that a rank skips, others on each rank; the second block is now and then skipped by all."""
    return (1, 3) if (rank + step) % 2 else (1,) if step % 3 == 0 else (2,)


class Aside(nn.Module):
    """A model that keeps a loss of its own beside its output, where DDP does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.aside = mlp(), nn.Linear(SIZE, SIZE)
        self.own: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.own = loss(self.aside(x))
        return self.main(x)


# What a forward gets beside its batch, by the rank and the step.
Given = Callable[[int, int], Sequence[Any]]


def nothing(rank: int, step: int) -> Sequence[Any]:
    return ()


def skipping(rank: int, step: int) -> Sequence[Any]:
    return (uneven(rank, step),)


def usual(loop: Loop, model: Any, given: Given = skipping, **how: Any) -> None:
    """Train with one forward and one backward a step."""
    for step in loop.trained(model, **how):
        loss(model(loop.batch(step), *given(loop.rank, step))).backward()


def program(build: Callable[[], Any], given: Given = skipping, **how: Any) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        """A model is built, wrapped, and trained with one forward and one backward a step."""
        for model, step in loop.training(build(), **how):
            loss(model(loop.batch(step), *given(loop.rank, step))).backward()

    return train
