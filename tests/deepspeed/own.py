"""An encoder of no toolkit whose layers are skipped by a draw."""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch import nn


class OwnEncoder(nn.Module):
    """Six layers; in training each is skipped at a rate.

    Args:
        rate: from 0 to 1.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        # Runs always: a step may skip all layers.
        self.first = nn.Linear(8, 8)
        self.encoders = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6))

    def forward(self, frames: torch.Tensor, lengths: Any) -> Tuple[torch.Tensor, Any]:
        frames = self.first(frames)
        for layer in self.encoders:
            if self.training and torch.rand(1).item() < self.rate:
                continue
            frames = frames + layer(frames)
        return frames, lengths
