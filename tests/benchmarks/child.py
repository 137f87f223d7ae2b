"""Ranks that train the same model in stock and with ddpfix, in turns: ``child.py plain ...``, or ``ranks ...``.

*plain* is one rank alone, and the price of a step in which every parameter is used; it prints JSON. Two equal models
take turns in one process. One was wrapped before ddpfix was activated and keeps torch's own forward and backward; the
other one has everything that is on by default. Garbage is not collected meanwhile.

*ranks* is one of two, which torch elastic runs. Both models live in one process, so that they take turns under the same
load. The one that was wrapped while ddpfix was off stays as it was: a model that did not agree on a seed draws its own
numbers.
"""

from __future__ import annotations

import copy
import functools
import gc
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as hooks

from ddpfix import engine
from tests.benchmarks.measure import take_turns

WARM = 300
PARTS = ("forward", "backward", "optimizer")
# torch's own, in a list: ddpfix finds and replaces what modules hold themselves.
STOCK: List[Callable[..., Any]] = [DistributedDataParallel.forward, torch.autograd.backward]
WIDTH, INNER, TOKENS, DEPTH = 128, 512, 256, 12
RATES = (0.5, 0.1)


class Small:
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
        self._stock = Small(layers)
        self._stock.model.forward = functools.partial(STOCK[0], self._stock.model)
        engine.activate(log="off")
        self._ours = Small(layers)
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
        distributed.barrier()
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
    torch.manual_seed(distributed.get_rank())
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
    distributed.all_reduce(most, distributed.ReduceOp.MAX)
    return float(most.mean())


def plain(layers: str, pairs: str, store: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    print(json.dumps(measured(int(layers), int(pairs))))


def ranks(folder: str, quick: str = "") -> None:
    distributed.init_process_group("gloo")
    found = [steps(rate, bool(quick)) for rate in RATES]
    if distributed.get_rank() == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    distributed.barrier()


ACTS: Dict[str, Callable[..., None]] = {"plain": plain, "ranks": ranks}
if __name__ == "__main__":
    torch.set_num_threads(1)
    ACTS[sys.argv[1]](*sys.argv[2:])
    distributed.destroy_process_group()
