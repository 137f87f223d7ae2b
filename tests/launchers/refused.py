"""A program that is started by torchrun or alone, and starts two processes that import torch."""

from __future__ import annotations

import torch
from torch import multiprocessing


def child(number: int) -> None:
    torch.ones(1)


if __name__ == "__main__":
    multiprocessing.spawn(child, nprocs=2)  # type: ignore[no-untyped-call]
    print("trained")
