"""A tiny model, and the batches that it trains on, for every release of WeNet."""

from __future__ import annotations

import inspect
import os
import time
from importlib import import_module
from typing import Any, Dict, Iterator, List, Optional

import torch


def era(text: str = "") -> int:
    """By an Executor's text: 1 nothing about uneven data; 2 ``model.join``; 3 also ``wenet_join``, and step mode."""
    text = text or inspect.getsource(import_module("wenet.utils.executor"))
    return 3 if "wenet_join" in text else 2 if "model.join" in text else 1


def answers_with_tuple() -> bool:
    return "loss_att, loss_ctc" in inspect.getsource(import_module("wenet.utils.executor"))


def features(number: int) -> torch.Tensor:
    """The features of batch ``number``: 2 utterances of 2 to 4 frames."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(2, 2 + number % 3, 4, generator=generator)


class Tiny(torch.nn.Module):
    """A linear layer, BatchNorm, and the square of what comes out; ``trained`` keeps the numbers of its batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        # No bias: before BatchNorm its gradient would be rounding errors, which Adam makes large.
        self.linear = torch.nn.Linear(4, 3, bias=False)
        self.norm = torch.nn.BatchNorm1d(3)
        self.trained: List[int] = []

    def loss(self, feats: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.linear(feats.reshape(-1, 4)))
        return (hidden + hidden**2).sigmoid().mean()

    def seen(self, number: int) -> None:
        if self.training:
            self.trained.append(number)

    def forward(self, *given: Any) -> Any:
        if isinstance(given[0], dict):
            batch = given[0]
            self.seen(int(batch["keys"][0]))
            return {"loss": self.loss(batch["feats"]), "th_accuracy": None}
        feats, _, target, _ = given
        self.seen(int(target[0, 0]))
        loss = self.loss(feats)
        return (loss, None, None) if answers_with_tuple() else {"loss": loss}


def batch(number: int, empty: bool = False) -> Any:
    """One batch, of the kind that this release of WeNet takes."""
    feats = features(number)[: 0 if empty else 2]
    target = torch.full((len(feats), 1), number)
    lengths = torch.ones(len(feats), dtype=torch.int64)
    if era() < 3:
        return [str(number)] * len(feats), feats, target, lengths * feats.size(1), lengths
    names = ("keys", "feats", "target", "feats_lengths", "target_lengths")
    return dict(zip(names, ([str(number)] * len(feats), feats, target, lengths * feats.size(1), lengths)))


class Batches:
    """Batches ``first`` and following; some are empty, and at one there may be an error, or the end of this process."""

    def __init__(self, first: int, count: int, empty: Any = (), fail: Optional[Dict[str, Any]] = None) -> None:
        self.first, self.count, self.empty, self.fail = first, count, set(empty), fail or {}

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.first, self.first + self.count):
            where = self.fail.get("where") if self.fail.get("at") == number else ""
            if where == "loader":
                raise ValueError(f"file {number} is bad")
            if where == "worker":
                # What it has read before is to be on its way no longer.
                time.sleep(0.5)
                os._exit(7)
            if where == "slow":
                time.sleep(2)
            yield batch(number, number in self.empty)


class Piped(torch.utils.data.IterDataPipe):  # type: ignore[type-arg]
    """The same for a DataLoader: one whose iterator is a collective, as it is from 3.0.1 on."""

    def __init__(self, data: Batches) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)
