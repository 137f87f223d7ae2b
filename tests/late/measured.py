"""What collectives cost, on devices and in groups where it cannot be measured; each scenario fills ``record``."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.benchmarks.mode_child import Encoder

Record = Dict[str, Any]


def no_float64(record: Record) -> None:
    """As Ascend's HCCL, which reduces no float64."""
    _refuse(lambda tensor: tensor.dtype is torch.float64)
    _train(record)


def nothing_asynchronous(record: Record) -> None:
    """No rank can measure: all of them are refused what the measurement asks for."""
    _refuse(lambda tensor: tensor.numel() == 256)
    _train(record)


def no_memory_on_one_rank(record: Record) -> None:
    """The device of one rank is full when the others begin."""
    zeros = torch.zeros

    def full(*size: Any, **options: Any) -> Any:
        if distributed.get_rank() == 1 and size == (1 << 20,):
            raise RuntimeError("out of memory")
        return zeros(*size, **options)

    torch.zeros = full
    _train(record)


def one_rank_fails_at_the_end(record: Record) -> None:
    """One rank cannot read the numbers that all of them have reduced."""
    tolist = torch.Tensor.tolist

    def fails(self: Any) -> Any:
        if distributed.get_rank() == 1 and self.shape == (4,) and self.dtype is not torch.int64:
            raise RuntimeError("the device is lost")
        return tolist(self)

    torch.Tensor.tolist = fails
    _train(record)


def _refuse(refused: Callable[[Any], bool]) -> None:
    stock = distributed.all_reduce

    def all_reduce(tensor: Any, *args: Any, **options: Any) -> Any:
        if refused(tensor):
            raise RuntimeError(f"all-reduce: unsupported: {tensor.numel()} {tensor.dtype}")
        return stock(tensor, *args, **options)

    distributed.all_reduce = all_reduce


def _train(record: Record) -> None:
    from ddpfix.patches.torch.buckets import cost

    torch.manual_seed(5)
    model = DistributedDataParallel(Encoder(0.5, 8, 4))
    record["costs"] = [None if each is None else list(each) for each in cost._KNOWN.values()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(distributed.get_rank())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8)).square().mean().backward()
        optimizer.step()
    record["weights"] = [float(p.detach().sum()) for p in model.parameters()]
