"""An encoder that checkpoints its layers as WeNet 3.0 does: by torch's default, which is reentrant."""

from __future__ import annotations

import torch
import torch.utils.checkpoint as ckpt


class Encoder(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gradient_checkpointing = True
        self.encoders = torch.nn.ModuleList(torch.nn.Linear(size, size) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.encoders:
            x = ckpt.checkpoint(layer.__call__, x)
        return x
