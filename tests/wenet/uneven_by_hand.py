"""What training has to come to: the tiny model trained in one process, on the mean over ranks of their gradients."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, Sequence

import torch

from tests.wenet import uneven_tiny_model


class Warmup(torch.optim.lr_scheduler.LambdaLR):
    """Linear to ``warmup_steps``, then as one over the root of the step."""

    def __init__(self, optimizer: Any, warmup_steps: int) -> None:
        def factor(epoch: int) -> float:
            return float(warmup_steps**0.5 * min((epoch + 1) ** -0.5, (epoch + 1) * warmup_steps**-1.5))

        super().__init__(optimizer, factor)


def by_hand(
    numbers: Sequence[Sequence[int]], era: int, stop: bool = False, accum: int = 1, rounds: int = 1
) -> Dict[str, Any]:
    """Weights and learning rate after some epochs; a rank that has no more batches contributes a gradient of zero.

    Up to era 2 the optimizer steps after the first micro-batch of a window, and then after the last one.
    """
    model = uneven_tiny_model.Tiny().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = Warmup(optimizer, warmup_steps=4)
    for _ in range(rounds):
        columns = zip(*numbers) if stop else itertools.zip_longest(*numbers)
        for index, column in enumerate(columns):
            for rank, number in enumerate(column):
                if number is not None:
                    add(model, rank, number, accum * len(numbers))
            if (index if era < 3 else index + 1) % accum == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 50.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
    weights = {name: value.flatten().tolist() for name, value in model.named_parameters()}
    statistics = {name: value.flatten().tolist() for name, value in model.named_buffers()}
    return {"weights": weights, "statistics": statistics, "lr": optimizer.param_groups[0]["lr"]}


def add(model: Any, rank: int, number: int, parts: int) -> None:
    """The gradient of one batch; only rank 0's statistics of BatchNorm are those of the model."""
    before = {name: value.clone() for name, value in model.named_buffers()}
    (model.loss(uneven_tiny_model.features(number)) / parts).backward()
    if rank:
        for name, value in model.named_buffers():
            value.copy_(before[name])


def apart(actual: Dict[str, List[float]], expected: Dict[str, List[float]]) -> float:
    """Largest difference of weights or statistics; how many batches there were is not of interest."""
    names = [name for name in expected if not name.endswith("num_batches_tracked")]
    return max(abs(one - other) for name in names for one, other in zip(actual[name], expected[name]))
