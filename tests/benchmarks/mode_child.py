"""One of some ranks: takes steps of the same model in several modes of DDP, in turns; torch elastic runs it.

The modes are put together by hand, so that all of them live in one process under the same load: a model that is wrapped
while ddpfix is off stays stock's, and each rank then draws its own numbers.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import torch
from ddpfix.patches.torch import late, unsent
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpfix import engine

# (flag or late, unsent, bucket views); stock's ranks draw each for itself.
MODES = {
    "plain": ("none", False, False),
    "stock+find": ("stock", False, False),
    "stock+find, views": ("stock", False, True),
    "find": ("find", False, False),
    "find, views": ("find", False, True),
    "find+unsent": ("find", True, False),
    "find+unsent, views": ("find", True, True),
    "late": ("late", False, False),
    "late, views": ("late", False, True),
    "late+unsent": ("late", True, False),
    "late+unsent, views": ("late", True, True),
}


class Layer(nn.Module):  # type: ignore[misc, unused-ignore]
    """A layer of WavLM-base's shape: attention and a feed-forward part of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        hidden = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
        return hidden + self.feed(hidden)


class Encoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """Skips layers as transformers' speech encoders do; between a projection and a head that always run."""

    def __init__(self, rate: float, width: int, depth: int) -> None:
        super().__init__()
        self.layerdrop = rate
        self.entry, self.head = nn.Linear(width, width), nn.Linear(width, 32)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.ran = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.entry(hidden)
        for layer in self.layers:
            if self.training and torch.rand([]) < self.layerdrop:
                continue
            hidden = layer(hidden)
            self.ran += 1
        return self.head(hidden)


class Arm:
    """One mode."""

    def __init__(self, mode: str, plan: Dict[str, Any]) -> None:
        kind, keeps, views = MODES[mode]
        torch.manual_seed(0)
        self.encoder = Encoder(plan["rate"], plan["width"], plan["depth"])
        self.plan = plan
        options: Dict[str, Any] = {"gradient_as_bucket_view": views}
        if kind == "stock" or kind == "none":
            engine.deactivate()
            options["find_unused_parameters"] = kind == "stock"
        engine.activate(log="off") if kind in ("find", "late") else None
        if kind in ("find", "late"):
            options["find_unused_parameters"] = kind == "find"
        self.wrapped = DistributedDataParallel(self.encoder, **options)
        if kind == "late":
            late._arm(self.wrapped)
            assert self.wrapped in late._CLOSERS
        if not keeps:
            unsent._CONSIDERED.add(self.wrapped)
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), lr=1e-3)

    def steps(self, count: int) -> float:
        """Milliseconds a step."""
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            self.optimizer.zero_grad(set_to_none=True)
            hidden = torch.randn(self.plan["batch"], self.plan["frames"], self.plan["width"])
            self.wrapped(hidden).square().mean().backward()
        return (time.perf_counter() - begun) / count * 1000


def measured(plan: Dict[str, Any]) -> Dict[str, Any]:
    """Steps of all modes in turns."""
    # The modes of stock first: to deactivate ends what was wrapped before.
    order = sorted(plan["modes"], key=lambda mode: MODES[mode][0] not in ("stock", "none"))
    arms = {mode: Arm(mode, plan) for mode in order}
    # One activation serves the others; the last of them has left it on.
    torch.manual_seed(dist.get_rank())
    for arm in arms.values():
        arm.steps(plan["warm"])
        arm.encoder.ran = 0
    turns: Dict[str, List[float]] = {mode: [] for mode in arms}
    for turn in range(plan["turns"]):
        for mode in list(arms)[:: -1 if turn % 2 else 1]:
            turns[mode].append(arms[mode].steps(plan["steps"]))
    steps = plan["turns"] * plan["steps"]
    found = {"plan": plan, "turns": turns, "layers": {m: _most(a.encoder.ran / steps) for m, a in arms.items()}}
    found["traffic"] = {m: _traffic(a.wrapped) for m, a in arms.items()}
    del arms
    gc.collect()
    return found


def _most(value: float) -> float:
    most = torch.tensor(value)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def _traffic(wrapper: Any) -> Any:
    state = unsent.STATES.get(wrapper)
    return (
        None if state is None else [state.traffic.sent, state.traffic.saved, state.traffic.buckets, state.traffic.kept]
    )


def main(folder: str, plans: Sequence[Dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = [measured(plan) for plan in plans]
    if dist.get_rank() == 0:
        Path(folder, "modes.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(Path(sys.argv[1], "plans.json").read_text()))
