"""A layer with the names and rates of e_branchformer's in WeNet 3.1, which scales what it adds."""

from __future__ import annotations

import torch


class EBranchformerEncoderLayer(torch.nn.Module):
    def __init__(self, size: int, stochastic_depth_rate: float = 0.0) -> None:
        super().__init__()
        self.cgmlp = torch.nn.Linear(size, size)
        self.stochastic_depth_rate = stochastic_depth_rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (1.0 / (1 - self.stochastic_depth_rate) if self.training else 1.0) * self.cgmlp(x)
