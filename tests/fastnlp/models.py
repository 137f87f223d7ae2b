"""The models that are trained: with parameters that no step uses, and without."""

from __future__ import annotations

import os
from typing import Any, Dict, List

import torch
from torch import nn

SAMPLES = 16


class Spare(nn.Module):
    """Two layers, of which only the first one runs."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.used = nn.Linear(4, 1)
        for number in range(layers - 1):
            self.add_module(f"spare{number}", nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"loss": self.used(x).pow(2).mean()}

    def evaluate_step(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"pred": self.used(x)}


class Whole(Spare):
    """Every parameter is used in every step."""

    def __init__(self) -> None:
        super().__init__(1)


class Checkpointed(Whole):
    """A stack that is computed again in backward, by the kind of checkpointing that is torch's default."""

    keywords: Dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        from torch.utils.checkpoint import checkpoint

        out = checkpoint(self.used, x.requires_grad_(), **self.keywords)
        return {"loss": out.pow(2).mean()}


class Reentrant(Checkpointed):
    keywords = {"use_reentrant": True}


MODELS: Dict[str, Any] = {
    "spare": Spare,
    "whole": Whole,
    "checkpointed": Checkpointed,
    "reentrant": Reentrant,
}


def make(name: str) -> nn.Module:
    """A model with the same weights on every rank, and the same every time."""
    torch.manual_seed(7)
    return MODELS[name]()


def samples() -> List[Dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [{"x": torch.randn(4, generator=generator)} for _ in range(SAMPLES)]


def rank() -> int:
    return int(os.environ.get("RANK", "0"))
