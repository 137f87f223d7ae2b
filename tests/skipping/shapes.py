"""Encoders that skip layers at random, each written in another way; see ``test_shapes``."""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, Iterable, Iterator, List, Tuple, cast

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.written import written

LAYERS = 6
coin = random.random


class Encoder(nn.Module):
    """What they have in common: a list of layers and a rate."""

    held: Callable[[Iterable[Any]], Any] = nn.ModuleList

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = self.layerdrop = rate
        self.layers = self.held(self.made() for _ in range(LAYERS))

    def made(self) -> nn.Module:
        return nn.Linear(4, 4)


def step(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.tanh(layer(x))


class Rates(Encoder):
    """Stochastic depth, linear in the depth."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [0.8 * index / LAYERS for index in range(LAYERS)]


class Dictionary(Encoder):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"layer{index}": nn.Linear(4, 4) for index in range(LAYERS)})  # type: ignore


# The loop that most of them have. By the class: what stands before it, the condition on which a layer is left out, what
# the loop goes over, and the base.
LOOP = """
class {name}({base}):
    def forward(self, x):
        {before}
        for {turn}:
            if {condition}:
                continue
            x = step(layer, x)
        return x
"""
EACH = "i, layer in enumerate(self.layers)"
LOOPS: Dict[str, Tuple[str, ...]] = {
    "Scalar": ("", "self.training and torch.rand([]) < self.rate"),
    "Imported": ("", "self.training and coin() < self.rate"),
    "Survival": ("survival = 1 - self.rate", "self.training and torch.rand(1, dtype=torch.float64) > survival"),
    # ESPnet's, and SpeechBrain's.
    "EmptyVector": (
        "_probs = torch.empty(len(self.layers)).uniform_()",
        "not (not self.training or _probs[i] >= self.rate)",
    ),
    "NumpyVector": (
        "keep = np.random.rand(len(self.layers)) if self.rate > 0 else None",
        "not (not self.training or keep is None or keep[i] > self.rate)",
    ),
    "Mask": ("keep = torch.rand(LAYERS) >= self.layerdrop", "not (keep[i] or not self.training)"),
    "ByData": ("", "self.training and torch.rand(1) < x.abs().mean()"),
    "IndexedRates": ("", "self.training and self.rates[i] > 0 and random.random() < self.rates[i]", EACH, "Rates"),
    "Kept": (
        "kept = [layer for layer in self.layers if not self.training or random.random() >= self.layerdrop]",
        "False",
        "layer in kept",
    ),
    "Items": ("", "self.training and random.random() < self.rate", "_, layer in self.layers.items()", "Dictionary"),
}


def loop(name: str, before: str, condition: str, turn: str = EACH, base: str = "Encoder") -> type:
    text = LOOP.format(name=name, before=before or "pass", condition=condition, turn=turn, base=base)
    return written(name, text, globals())


OF_LOOPS = tuple(loop(name, *words) for name, words in LOOPS.items())


class Item(Encoder):
    """torchaudio's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if not (self.training and torch.rand(1).item() <= self.rate):
                x = x + layer(x).tanh()
        return x


class Numpy(Encoder):
    """fairseq's, and so s3prl's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            dropout_probability = np.random.random() if self.rate > 0 else 1
            if not self.training or (dropout_probability > self.rate):
                x = step(layer, x)
        return x


class NumpyGenerator(Encoder):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if not self.training or self.rng.random() > self.rate:
                x = step(layer, x)
        return x


class Vector(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        draws = torch.rand(LAYERS)
        for i in range(len(self.layers)):
            if self.training and draws[i].item() < self.rate:
                continue
            x = step(self.layers[i], x)
        return x


class Elsewhere(Encoder):
    """A method of another name has the loop."""

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.training and torch.rand(1).item() < self.rate:
                continue
            x = step(layer, x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x)


class Block(nn.Module):
    """A layer that draws for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.inner = 0.5, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.rand(1).item() < self.rate:
            return x
        return step(self.inner, x)


class Blocks(Encoder):
    def made(self) -> nn.Module:
        return Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Around(nn.Module):
    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function, self.rate = function, 0.5

    def forward(self, x: torch.Tensor, *others: Any) -> torch.Tensor:
        survives = not self.training or random.random() >= self.rate
        return x + self.function(x, *others) if survives else x


class Arounds(Blocks):
    def made(self) -> nn.Module:
        return Around(nn.Linear(4, 4))


class DroppingList(nn.ModuleList):
    """fairseq's LayerDropModuleList."""

    def __iter__(self) -> Iterator[Any]:
        dropout_probs = torch.empty(len(self)).uniform_()
        for i, m in enumerate(super().__iter__()):
            if not self.training or (dropout_probs[i] > 0.5):
                yield m


class Listed(Blocks):
    held, made = DroppingList, Encoder.made


class While(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = 0
        while index < len(self.layers):
            if not self.training or random.random() >= self.layerdrop:
                x = step(self.layers[index], x)
            index += 1
        return x


class Checkpointed(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.training and torch.rand(1).item() < self.rate:
                continue
            x = checkpoint(step, layer, x, use_reentrant=False)
        return x


class Conditional(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x if self.training and torch.rand(1) < self.rate else step(layer, x)
        return x


class TensorRate(Encoder):
    """A rate in a buffer, which is on a device."""

    def __init__(self) -> None:
        super().__init__()
        del self.rate
        self.register_buffer("rate", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < self.rate:
                continue
            x = step(layer, x)
        return x


class Bookkeeping(Encoder):
    """One number, and two comparisons."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: List[Any] = []
        for layer in self.layers:
            draw = random.random()
            if draw > self.rate:
                x = step(layer, x)
                outputs.append(x)
            if draw <= self.rate:
                outputs.append(None)
        assert len(outputs) == LAYERS
        return x


def without_a_module(base: type) -> type:
    """A subclass as a configuration makes it that is run by ``exec``, without a ``__name__``: it has no __module__."""
    scope: Dict[str, Any] = {"base": base}
    exec("kind = type('WithoutAModule', (base,), {'forward': base.forward})", scope)
    return cast(type, scope["kind"])


WithoutAModule = without_a_module(Item)


class ClosedRate(Encoder):
    """Its rate can be had in a forward alone."""

    is_open = False

    @property
    def schedule(self) -> float:
        if not self.is_open:
            raise RuntimeError("not in a forward")
        return self.rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_open = True
        for layer in self.layers:
            if random.random() >= self.schedule:
                x = step(layer, x)
        self.is_open = False
        return x


class CountedList(Encoder):
    """Its property counts how often it is read, by a helper, and the count is part of what is trained."""

    reads = 0

    def note(self) -> None:
        self.reads += 1

    @property
    def blocks(self) -> List[Any]:
        self.note()
        return list(self.layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if random.random() >= self.rate:
                x = step(block, x)
        return x * self.reads


ALL: Tuple[type, ...] = (
    *OF_LOOPS,
    *(Item, Numpy, NumpyGenerator, Vector, Elsewhere, Blocks, Arounds, Listed, While, Checkpointed),
    *(Conditional, TensorRate, Bookkeeping, WithoutAModule, ClosedRate),
    CountedList,
)
