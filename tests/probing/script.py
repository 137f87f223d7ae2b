"""A training script as users write them: a group, DDP, a loop, and a checkpoint at the end, whatever happens.

Words: ``nccl`` or ``gloo`` (else there is no group), ``guarded`` (a loop that catches everything), ``past`` (the bare
model in some steps), ``fails``, ``gan`` (two optimizers), ``steps=N``, ``files`` (a log that is not flushed).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.last, self.idle = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        return self.last(self.branch(hidden) if x[0, 0] > 0 else hidden)


def saved() -> None:
    Path("checkpoint.pt").write_text("whole")
    print("SAVED")


def batches(steps: int) -> Any:
    for step in range(steps):
        yield torch.ones(2, 4) if step % 2 else -torch.ones(2, 4)


def train(words: Any, steps: int) -> None:
    net = Net()
    for backend in {"nccl", "gloo"} & set(words):
        distributed.init_process_group(backend)
    model: Any = DistributedDataParallel(net) if distributed.is_initialized() else net
    other = nn.Linear(4, 4)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1)]
    if "gan" in words:
        optimizers.append(torch.optim.SGD(other.parameters(), lr=0.1))
    log = open("log.txt", "w")  # noqa: SIM115
    for step, batch in enumerate(batches(steps)):
        log.write(f"step {step}\n")
        output = (net if "past" in words and step == 1 else model)(batch)
        for optimizer, loss in zip(optimizers, (output.square().sum(), other(output.detach()).sum())):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("after", step, flush=True)
        if "fails" in words and step == 1:
            raise ValueError("the script's own")


def main() -> None:
    words = sys.argv[1:]
    steps = next((int(word[6:]) for word in words if word.startswith("steps=")), 50)
    try:
        train(words, steps)
    except BaseException:
        if "guarded" not in words:
            raise
        print("CAUGHT")
    finally:
        saved()


if __name__ == "__main__":
    main()
