"""Models that leave parameters out, each with its own way of one micro-batch: forward and backward."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Dict, List, Type

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

SIZE = 8


class Case:
    """A stack of blocks of which each rank skips others; parts of it are changed by subclasses.

    Attributes:
        ddp: keywords of DistributedDataParallel.
        accum: micro-batches an optimizer step.
        clip: largest norm, or 0.
        plain_error: the error that plain torch ends with, or "".
    """

    ddp: Dict[str, Any] = {}
    accum = 1
    clip = 0.0
    scale = False
    depth = 6
    plain_error = "Expected to have finished reduction"

    def model(self) -> Any:
        return Stack(self.depth)

    def skips(self, rank: int, number: int) -> List[int]:
        """The blocks that a rank leaves out of its micro-batch ``number``."""
        generator = torch.Generator().manual_seed(1000 * rank + number)
        return [index for index in range(1, self.depth) if torch.rand(1, generator=generator) < 0.5]

    def batch(self, rank: int, number: int) -> Any:
        return torch.randn(4, SIZE, generator=torch.Generator().manual_seed(7 * rank + 31 * number))

    def run(self, model: Any, rank: int, number: int, scale: Any) -> None:
        """One micro-batch."""
        scale(self.loss(model, rank, number) / self.accum).backward()

    def loss(self, model: Any, rank: int, number: int) -> Any:
        return model(self.batch(rank, number), self.skips(rank, number)).pow(2).mean()

    def between(self, model: Any, step: int) -> None:
        """Called before each optimizer step's micro-batches."""


class Stack(nn.Module):
    """Blocks, and a module that is never used."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh()) for _ in range(depth))
        self.never = nn.Linear(3, 3)

    def forward(self, x: Any, skips: List[int]) -> Any:
        for index, block in enumerate(self.blocks):
            if index not in skips:
                x = self.call(block, x)
        return x

    def call(self, block: Any, x: Any) -> Any:
        return block(x)


class Plain(Case):
    pass


class Many(Case):
    """More than a hundred parameters without gradient in a step, which is what torch names at most."""

    depth = 160


class Full(Case):
    """Nothing is unused."""

    plain_error = ""

    def model(self) -> Any:
        model = Stack(self.depth)
        del model.never
        return model

    def skips(self, rank: int, number: int) -> List[int]:
        return []


class Branch(Case):
    """A branch that rank 0 alone takes."""

    def skips(self, rank: int, number: int) -> List[int]:
        return [] if rank == 0 else [2, 3]


class Experts(Case):
    """The data decides which block runs."""

    def skips(self, rank: int, number: int) -> List[int]:
        chosen = 1 + int(self.batch(rank, number).sum().abs() * 100) % (self.depth - 1)
        return [index for index in range(1, self.depth) if index != chosen]


class Views(Case):
    ddp = {"gradient_as_bucket_view": True}


class Accumulating(Case):
    accum = 3


class AccumulatingViews(Accumulating):
    ddp = {"gradient_as_bucket_view": True}


class Clipping(Case):
    clip = 0.05


class Scaling(Case):
    scale = True
    clip = 0.05


class Checkpointed(Stack):
    reentrant = True

    def call(self, block: Any, x: Any) -> Any:
        return checkpoint(block, x, use_reentrant=self.reentrant)


class CheckpointedKept(Checkpointed):
    reentrant = False


class Reentrant(Case):
    """Activation checkpointing of the kind that excludes the flag."""

    def model(self) -> Any:
        return Checkpointed(self.depth)

    def batch(self, rank: int, number: int) -> Any:
        return super().batch(rank, number).requires_grad_()


class NonReentrant(Reentrant):
    def model(self) -> Any:
        return CheckpointedKept(self.depth)


@dataclass
class Output:
    logits: Any
    parts: Any
    spare: Any


class Structured(Stack):
    """Outputs in a dataclass with a dict and a list; one of them never reaches the loss."""

    def forward(self, x: Any, skips: List[int]) -> Any:
        y = super().forward(x, skips)
        return Output(y, {"a": [y * 2, (y.detach(),)]}, self.blocks[-1](x) if 1 in skips else x)


class Outputs(Case):
    def model(self) -> Any:
        return Structured(self.depth)

    def loss(self, model: Any, rank: int, number: int) -> Any:
        output = model(self.batch(rank, number), self.skips(rank, number))
        return (output.logits + output.parts["a"][0]).pow(2).mean()


class Heads(nn.Module):
    """Two outputs with graphs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.never = Stack(3), Stack(3), nn.Linear(2, 2)

    def forward(self, x: Any, skips: List[int]) -> Any:
        return self.one(x, skips), self.other(x, [])


class TwoLosses(Case):
    def model(self) -> Any:
        return Heads()

    def run(self, model: Any, rank: int, number: int, scale: Any) -> None:
        first, second = model(self.batch(rank, number), self.skips(rank, number))
        first.pow(2).mean().backward()
        second.abs().mean().backward()


class OneOfTwo(TwoLosses):
    """The second output is for logging: its reduction is finalized before the optimizer's step."""

    def run(self, model: Any, rank: int, number: int, scale: Any) -> None:
        first, second = model(self.batch(rank, number), self.skips(rank, number))
        first.pow(2).mean().backward()
        float(second.detach().mean())
        self.held = second


class Normed(Stack):
    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.norm = nn.BatchNorm1d(SIZE)

    def forward(self, x: Any, skips: List[int]) -> Any:
        return super().forward(self.norm(x), skips)


class Buffers(Case):
    def model(self) -> Any:
        return Normed(self.depth)


class Shared(Case):
    """A weight in two places, of which one is skipped."""

    def model(self) -> Any:
        model = Stack(self.depth)
        model.blocks[1][0].weight = model.blocks[-1][0].weight
        return model


class Freezing(Case):
    """Blocks are frozen and set free again between steps."""

    def between(self, model: Any, step: int) -> None:
        for index, block in enumerate(model.module.blocks if hasattr(model, "module") else model.blocks):
            block.requires_grad_(index != 1 + step % 3)


class Compiled(Case):
    def loss(self, model: Any, rank: int, number: int) -> Any:
        return model(self.batch(rank, number), self.skips(rank, number) if number % 2 else []).pow(2).mean()

    def skips(self, rank: int, number: int) -> List[int]:
        return [2, 3] if (rank + number // 2) % 2 else []

    def prepared(self, model: Any) -> Any:
        return torch.compile(model, backend="eager")


class Forwards(Case):
    """Two forwards before one backward, and a forward without backward."""

    def loss(self, model: Any, rank: int, number: int) -> Any:
        model(self.batch(rank, number), self.skips(rank, number))
        both = (model(self.batch(rank, number + shift), self.skips(rank, number + shift)) for shift in (100, 200))
        return sum(output.pow(2).mean() for output in both)


class Raising(Case):
    """An exception between forward and backward, on all ranks, that the loop catches."""

    def run(self, model: Any, rank: int, number: int, scale: Any) -> None:
        with contextlib.suppress(ValueError):
            self.loss(model, rank, number)
            raise ValueError("a bad batch")
        super().run(model, rank, number, scale)


class Autocast(Case):
    def loss(self, model: Any, rank: int, number: int) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(self.batch(rank, number), self.skips(rank, number))
        return output.float().pow(2).mean()


class Hooked(Case):
    """A parameter's own hook, which expects a gradient."""

    def model(self) -> Any:
        model = Stack(self.depth)
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * 0.5)
        return model


class Crossed(nn.Module):
    """A decoder whose blocks all look at the encoder; without any of them the encoder is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.entry = Stack(3), nn.Linear(SIZE, SIZE)
        self.decoder = nn.ModuleList(nn.Linear(2 * SIZE, SIZE) for _ in range(2))

    def forward(self, x: Any, skips: List[int]) -> Any:
        seen, y = self.encoder(x, []), self.entry(x)
        for index, block in enumerate(self.decoder):
            if index not in skips:
                y = block(torch.cat([seen, y], -1)).tanh()
        return y


class CutOff(Case):
    """All layers of a decoder are dropped, in some steps on one rank and in some on all."""

    def model(self) -> Any:
        return Crossed()

    def skips(self, rank: int, number: int) -> List[int]:
        return [0, 1] if number % 3 == 0 or (number + rank) % 3 == 1 else [number % 2]


class Steady(Case):
    """The same blocks are left out in each step, others on each rank."""

    def skips(self, rank: int, number: int) -> List[int]:
        return [2, 3 + rank]


class SteadyViews(Steady):
    ddp = {"gradient_as_bucket_view": True}


class SteadyReentrant(Steady):
    def model(self) -> Any:
        return Checkpointed(self.depth)

    def batch(self, rank: int, number: int) -> Any:
        return super().batch(rank, number).requires_grad_()


CASES: Dict[str, Type[Case]] = {kind.__name__: kind for kind in Case.__subclasses__()}
CASES.update({kind.__name__: kind for base in list(CASES.values()) for kind in base.__subclasses__()})
