"""One rank, alone: the price of a plain DDP step in which every parameter is used; prints JSON.

Two equal models take turns in one process. One was wrapped before ddpfix was activated and keeps torch's own forward
and backward; the other one has everything that is on by default. Garbage is not collected meanwhile.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import time
from statistics import median
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as hooks

WARM = 300
PARTS = ("forward", "backward", "optimizer")
# torch's own, in a list: ddpfix finds and replaces what modules hold themselves.
STOCK: List[Callable[..., Any]] = [DistributedDataParallel.forward, torch.autograd.backward]


class Trained:
    """A model of so many layers under DDP, and its optimizer."""

    def __init__(self, layers: int) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)]))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self, backward: Callable[..., Any]) -> Tuple[int, ...]:
        """Train for one step; return the nanoseconds of its parts."""
        x = torch.ones(4, 8)
        times = [time.perf_counter_ns()]
        output = self.model(x)
        times.append(time.perf_counter_ns())
        loss = output.sum()
        begun = time.perf_counter_ns()
        backward(loss)
        times.append(times[-1] + time.perf_counter_ns() - begun)
        begun = time.perf_counter_ns()
        self.optimizer.step()
        times.append(times[-1] + time.perf_counter_ns() - begun)
        self.optimizer.zero_grad()
        return tuple(after - before for before, after in zip(times, times[1:]))


class Pair:
    """The two models, of so many layers each."""

    def __init__(self, layers: int) -> None:
        self._stock = Trained(layers)
        self._stock.model.forward = functools.partial(STOCK[0], self._stock.model)
        import ddpfix

        ddpfix.activate(log="off")
        self._ours = Trained(layers)
        self._hooks = [hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks]

    def stock(self) -> Tuple[int, ...]:
        """A step of torch's own, without the hooks that ddpfix has registered for all optimizers."""
        held = [dict(each) for each in self._hooks]
        for each in self._hooks:
            each.clear()
        times = self._stock.step(STOCK[1])
        for each, before in zip(self._hooks, held):
            each.update(before)
        return times

    def ours(self) -> Tuple[int, ...]:
        """A step under ddpfix."""
        return self._ours.step(torch.autograd.backward)


def measured(layers: int, pairs: int) -> Dict[str, float]:
    """Microseconds that ddpfix adds, by part of the step; and those of the whole step in plain torch."""
    pair = Pair(layers)
    for _ in range(WARM):
        pair.ours()
        pair.stock()
    added: List[List[int]] = []
    plain: List[int] = []
    gc.disable()
    for number in range(pairs):
        first, second = (pair.ours, pair.stock) if number % 2 else (pair.stock, pair.ours)
        one, other = first(), second()
        ours, stock = (one, other) if number % 2 else (other, one)
        added.append([our - their for our, their in zip(ours, stock)] + [sum(ours) - sum(stock)])
        plain.append(sum(stock))
    parts = {name: median(each[index] for each in added) / 1e3 for index, name in enumerate((*PARTS, "whole"))}
    return {**parts, "plain": median(plain) / 1e3}


def main(layers: int, pairs: int, store: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    print(json.dumps(measured(layers, pairs)))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
