"""One of two ranks: trains the same small model in stock and with ddpfix, in turns; torch elastic runs it.

Both models live in one process, so that they take turns under the same load. The one that was wrapped while ddpfix was
off stays as it was: a model that did not agree on a seed draws its own numbers.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpfix import engine
from tests.benchmarks.measure import take_turns

WIDTH, INNER, TOKENS, DEPTH = 128, 512, 256, 12
RATES = (0.5, 0.1)


class Stack(nn.Module):  # type: ignore[misc, unused-ignore]
    """Feed-forward layers that are skipped as bart's are. ``ran`` notes how many ran, a forward an entry."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.layerdrop = rate
        self.layers = nn.ModuleList(_layer() for _ in range(DEPTH))
        self.ran: List[int] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        ran = 0
        for layer in self.layers:
            if self.training and torch.rand([]) < self.layerdrop:
                continue
            hidden = hidden + layer(hidden)
            ran += 1
        self.ran.append(ran)
        return hidden


def _layer() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))


class Trained:
    """A wrapped model. Its parameters stay as they are: an optimizer would cost both the same."""

    def __init__(self, stack: Stack, **options: Any) -> None:
        self.stack = stack
        # CPU milliseconds of this rank, a step an entry.
        self.busy: List[float] = []
        self.wrapped = DistributedDataParallel(stack, **options)

    def steps(self, count: int) -> float:
        """Milliseconds of wall time a step: ranks wait for each other, and that is what is to be seen."""
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            working = time.process_time()
            self.wrapped.zero_grad(set_to_none=True)
            # It needs a gradient, or a step in which every layer is skipped would have no backward.
            hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
            self.wrapped(hidden).square().mean().backward()
            self.busy.append((time.process_time() - working) * 1000)
        return (time.perf_counter() - begun) / count * 1000


def steps(rate: float, quick: bool) -> Dict[str, Any]:
    """Wall time of steps in turns, and how many layers the slowest rank ran."""
    torch.manual_seed(0)
    stack = Stack(rate)
    engine.deactivate()
    stock = Trained(copy.deepcopy(stack), find_unused_parameters=True)
    engine.activate(log="off")
    ours = Trained(stack)
    assert ours.wrapped.find_unused_parameters, "ddpfix has not seen that this model skips layers"
    torch.manual_seed(dist.get_rank())
    arms = {"stock": stock, "ours": ours}
    for arm in arms.values():
        arm.steps(1 if quick else 3)
        arm.stack.ran.clear()
        arm.busy.clear()
    runs = {name: functools.partial(arm.steps, 1 if quick else 4) for name, arm in arms.items()}
    return {
        "rate": rate,
        "turns": take_turns(runs, 2 if quick else 30),
        "busy": {name: _slowest(arm.busy) for name, arm in arms.items()},
        "layers": {name: _slowest(arm.stack.ran) for name, arm in arms.items()},
    }


def _slowest(values: Sequence[float]) -> float:
    """What the rank with most of it has in a step, in the mean over the steps."""
    most = torch.tensor(values, dtype=torch.float32)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most.mean())


def main(folder: str, quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = [steps(rate, quick) for rate in RATES]
    if dist.get_rank() == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], "--quick" in sys.argv)
