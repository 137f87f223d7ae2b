"""Encoders that draw for other things than their layers, which are each rank's own; see ``test_shapes``."""

from __future__ import annotations

import random
from typing import Dict, Tuple

import numpy
import torch
from torch import nn

from tests.skipping.shapes import LAYERS, Blocks, Encoder, step
from tests.support.written import written


class Whole(Encoder):
    """Runs all layers; what it draws is in ``before`` and ``within``."""

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def within(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        for layer in self.layers:
            x = step(layer, self.within(x))
        return x


# What they draw, and whether before the layers or within each turn; then what their layers get.
DRAWS: Dict[str, Tuple[str, str, str]] = {
    "DropoutByHand": ("within", "keep = torch.rand(x.shape) > self.rate", "x * keep / (1 - self.rate)"),
    "Mixup": (
        "before",
        "part = float(numpy.random.beta(0.4, 0.4))",
        "part * x + (1 - part) * x[torch.randperm(len(x))]",
    ),
    "Flip": ("before", "flips = self.training and torch.rand(1).item() < self.rate", "x.flip(-1) if flips else x"),
    "Masked": ("before", "mask = torch.bernoulli(torch.full(x.shape, 0.2)).bool()", "x.masked_fill(mask, 0)"),
}
CLASS = """
class {name}(Whole):
    def {method}(self, x):
        {draw}
        return {given}
"""


def drawing(name: str, method: str, draw: str, given: str) -> type:
    names = {**globals(), "numpy": numpy}
    return written(name, CLASS.format(name=name, method=method, draw=draw, given=given), names)


OF_DRAWS = tuple(drawing(name, *words) for name, words in DRAWS.items())


class TimesZero(Whole):
    """NeMo's stochastic depth: each layer runs, and its output is multiplied by zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            original = x
            x = step(layer, x)
            if self.training and torch.rand(1) < self.rate:
                x = x * 0.0 + original
        return x


class Augmentations(Whole):
    """Modules without parameters, each used or not."""

    def __init__(self) -> None:
        super().__init__()
        self.augmentations = nn.ModuleList([nn.Dropout(0.2), nn.ReLU(), nn.Tanh()])

    def before(self, x: torch.Tensor) -> torch.Tensor:
        for augmentation in self.augmentations:
            if torch.rand(1) < self.rate:
                x = augmentation(x)
        return x


class KeptAugmentations(Augmentations):
    def before(self, x: torch.Tensor) -> torch.Tensor:
        for augmentation in [each for each in self.augmentations if random.random() < self.rate]:
            x = augmentation(x)
        return x


class Chunk(Whole):
    """WeNet's dynamic chunks: a drawn size, which is compared."""

    def before(self, x: torch.Tensor) -> torch.Tensor:
        size = int(torch.randint(1, 4, (1,)).item())
        if size > 2:
            size = 4
        return torch.cat([x[:, :size].cumsum(1), x[:, size:]], 1)


class Auxiliary(Whole):
    """A head for a further loss, in some of the steps: it is no layer among others."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if self.training and random.random() < self.rate:
            x = x + self.head(x)
        return x


class Threshold(Whole):
    """The rate is compared with what is no draw; a draw stands beside it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0 * torch.rand(1)
        for index, layer in enumerate(self.layers):
            if index / LAYERS > 0.9:
                continue
            x = step(layer, x)
        return x


class ShapeAfterNoise(Whole):
    """What is asked of a tensor with random numbers is its shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.1 * torch.randn_like(x)
        for layer in self.layers:
            if x.size(0) < 1 or x.shape[1] < 2 or len(x) < 1:
                continue
            x = step(layer, x)
        return x


class NoisyWeights(Whole):
    """A coin chooses the layers whose weights have a penalty; all of them run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = [layer for layer in self.layers if random.random() < self.rate]
        penalty = sum((layer.weight.norm() for layer in chosen), torch.zeros(()))
        for layer in self.layers:
            x = step(layer, x)
        return x + 0.001 * penalty


class Part(nn.Module):
    """A layer that always runs, with a projection that does at times."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.inner, self.projection = 0.5, nn.Linear(4, 4), nn.Linear(4, 4)

    def projected(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and random.random() < self.rate:
            return x
        projected: torch.Tensor = self.projection(x)
        return projected

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return step(self.inner, self.projected(x))


class Parts(Blocks):
    def made(self) -> nn.Module:
        return Part()


ALL: Tuple[type, ...] = (
    *OF_DRAWS,
    *(TimesZero, Augmentations, KeptAugmentations, Chunk, Auxiliary, Threshold, ShapeAfterNoise, NoisyWeights, Parts),
)
