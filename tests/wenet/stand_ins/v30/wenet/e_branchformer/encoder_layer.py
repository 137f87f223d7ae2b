"""A layer with the names and rates of e_branchformer's in WeNet 3.0, which draws for itself."""

from __future__ import annotations

import torch


class EBranchformerEncoderLayer(torch.nn.Module):
    def __init__(self, size: int, stochastic_depth_rate: float = 0.0) -> None:
        super().__init__()
        self.cgmlp = torch.nn.Linear(size, size)
        self.stochastic_depth_rate = stochastic_depth_rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, skipped = 1.0, False
        if self.training and self.stochastic_depth_rate > 0:
            skipped = torch.rand(1).item() < self.stochastic_depth_rate
            scale = 1.0 / (1 - self.stochastic_depth_rate)
        return x if skipped else x + scale * self.cgmlp(x)
