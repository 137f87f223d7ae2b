"""A layer with the names and rates of branchformer's in WeNet 2.2.1, which draws for itself and for a branch."""

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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, skipped = 1.0, False
        if self.training and self.stochastic_depth_rate > 0:
            skipped = torch.rand(1).item() < self.stochastic_depth_rate
            scale = 1.0 / (1 - self.stochastic_depth_rate)
        if skipped:
            return x
        out = self.cgmlp(x)
        if not (self.training and self.attn_branch_drop_rate > 0 and torch.rand(1).item() < self.attn_branch_drop_rate):
            out = out + self.pooling_proj1(x)
        return x + scale * out
