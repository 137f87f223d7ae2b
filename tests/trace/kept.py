"""One rank: trains with batches of one shape, while something is kept of each step, or nothing."""

from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

HOW, FOLDER = sys.argv[1], Path(sys.argv[2])
STEPS, BYTES = 18, 8 * 2**20
KILLED = 26


class Curve:
    """A metric like torchmetrics' exact BinaryAUROC, which keeps all predictions until it is reset."""

    def __init__(self) -> None:
        self.predictions: List[torch.Tensor] = []

    def update(self, predictions: torch.Tensor) -> None:
        self.predictions.append(predictions)


curve = Curve()
cache: Dict[int, Any] = {}


def metric(step: int, out: torch.Tensor) -> None:
    curve.update(torch.cat([out] * (BYTES // (4 * out.numel()))))


def mapped_file(step: int, out: torch.Tensor) -> None:
    """The pages of a file that is read by and by: the system takes them back when it likes."""
    if not cache:
        (FOLDER / "data").write_bytes(bytes(BYTES * (STEPS + 1)))
        with (FOLDER / "data").open("rb") as file:
            cache[0] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cache[0][step * BYTES : (step + 1) * BYTES].count(b"x")


def killed(step: int, out: torch.Tensor) -> None:
    if step == KILLED:
        os.kill(os.getpid(), 9)


WAYS: Dict[str, Callable[[int, torch.Tensor], None]] = {each.__name__: each for each in (metric, mapped_file, killed)}


def main() -> None:
    distributed.init_process_group("gloo", init_method=f"file://{FOLDER / 'store'}", rank=0, world_size=1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, (KILLED if HOW == "killed" else STEPS) + 1):
        out = model(torch.randn(64000 if step == KILLED else 2048, 32))
        WAYS[HOW](step, out)
        out.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if HOW != "killed":
            # Shorter steps than these share a look at the memory.
            time.sleep(0.06)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
