"""Runs of a few steps: what differs between ranks is said when their process group, or their program, ends."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest
import torch

from tests.support import ranks

# One rank changes its replica after the third of five steps.
PROGRAM = """
import sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

end = sys.argv[1]

def main():
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    data = TensorDataset(torch.arange(48.0).reshape(12, 4).sin())
    loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (batch,) in enumerate(loader):
        if step == 5:
            break
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        if step == 2 and rank == 1:
            with torch.no_grad():
                model.module.weight.add_(0.25)
    if end == "destroyed":
        distributed.destroy_process_group()

main()
"""
DIVERGED = (
    "rank 1 diverged from rank 0 in Linear between steps 2 and 4: 1 of 2 parameters, first weight (by 0.25 or more)"
)


def lines(folder: Path, end: str, **environ: str) -> List[str]:
    code, output = ranks.script(PROGRAM, folder, end, DDPFIX="1", **environ)
    assert code == 0, output
    return [line for line in output.splitlines() if line.startswith("ddpfix: ")]


@pytest.mark.ranks
@pytest.mark.patches("torch.divergence")
@pytest.mark.skipif(torch.__version__.startswith("2.0."), reason="threads share one connection: limitations.md")
@pytest.mark.parametrize(
    "end", ["destroyed", pytest.param("returned", marks=pytest.mark.sampled(inside=False, cells=True))]
)
def test_replicas_that_part_in_a_run_of_five_steps(tmp_path: Path, end: str) -> None:
    said = lines(tmp_path, end)
    assert any(DIVERGED in line for line in said), said
    assert not any("diverged" in line for line in lines(tmp_path, end, DDPFIX_DIVERGENCE="off"))
