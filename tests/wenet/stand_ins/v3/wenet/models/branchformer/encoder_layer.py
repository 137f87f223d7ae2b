"""A layer with the names and rates of branchformer's in WeNet 3.1, which draws for a branch and scales what it adds."""

from __future__ import annotations

import torch


class BranchformerEncoderLayer(torch.nn.Module):
    def __init__(self, size: int, stochastic_depth_rate: float = 0.0, attn_branch_drop_rate: float = 0.0) -> None:
        super().__init__()
        self.cgmlp = torch.nn.Linear(size, size)
        self.pooling_proj1 = torch.nn.Linear(size, size)
        self.use_two_branches, self.merge_method = True, "learned_ave"
        self.stochastic_depth_rate = stochastic_depth_rate
        self.attn_branch_drop_rate = attn_branch_drop_rate

    def _forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        out = self.cgmlp(x)
        if not (self.training and self.attn_branch_drop_rate > 0 and torch.rand(1).item() < self.attn_branch_drop_rate):
            out = out + self.pooling_proj1(x)
        return x + scale * out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(x, 1.0 / (1 - self.stochastic_depth_rate) if self.training else 1.0)
