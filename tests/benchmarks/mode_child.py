"""One of some ranks: takes steps of the same model in several modes of DDP, in turns; torch elastic runs it.

The modes are put together by hand, so that all of them live in one process under the same load: a model that is wrapped
while ddpfix is off stays stock's, and each rank then draws its own numbers.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import torch
from ddpfix.patches.torch.buckets import skip
from ddpfix.patches.torch.pipeline import ddp
from ddpfix.patches.torch.unused import stage as finalize
from ddpfix.patches.torch.unused.states import REDUCTION
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpfix import engine
from ddpfix.models.traffic import COUNTED
from tests.benchmarks import slowed

# (flag or late, unsent, bucket views); stock's ranks draw each for itself.
MODES = {
    "plain": ("none", False, False),
    "LayerDrop off": ("none", False, False),
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
STOCK = ("stock", "none")
_SEED = 20260101


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
        # How many layers ran, a forward an entry.
        self.ran: List[int] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.entry(hidden)
        ran = 0
        for layer in self.layers:
            if self.training and torch.rand([]) < self.layerdrop:
                continue
            hidden = layer(hidden)
            ran += 1
        self.ran.append(ran)
        return self.head(hidden)


class Arm:
    """One mode."""

    def __init__(self, mode: str, plan: Dict[str, Any], group: Any) -> None:
        kind, keeps, views = MODES[mode]
        torch.manual_seed(0)
        self.encoder = Encoder(0.0 if kind == "none" else plan["rate"], plan["width"], plan["depth"])
        self.plan = plan
        options: Dict[str, Any] = {"gradient_as_bucket_view": views, "bucket_cap_mb": plan["cap"]}
        options["find_unused_parameters"] = kind in ("stock", "find")
        self.wrapped = DistributedDataParallel(self.encoder, process_group=group, **options)
        model = ddp.of(self.wrapped)
        if kind == "late" and REDUCTION.of(model) is None:
            # The flag was refused in so many words above, which auto would leave alone.
            finalize.Finalize(everywhere=True).built(model, None)
        if keeps:
            # Also where it is not expected to pay, so that this can be seen.
            skip._install(model, None)
            skip._set_bucket_order(model)
        if model is not None:
            model.detach("bucket_skip")
            shared = ddp.replica(model)
            if shared is not None:
                # All modes that share their draws skip the same layers, so that their times can be compared.
                shared.seed = _SEED
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
    """Steps of all modes in turns, and what they do in one."""
    engine.deactivate()
    group = slowed.group(plan["bandwidth"]) if "bandwidth" in plan else None
    arms = {mode: Arm(mode, plan, group) for mode in plan["modes"] if MODES[mode][0] in STOCK}
    engine.activate(log="off", **plan.get("switches", {}))
    arms.update((mode, Arm(mode, plan, group)) for mode in plan["modes"] if MODES[mode][0] not in STOCK)
    torch.manual_seed(dist.get_rank())
    for arm in arms.values():
        arm.steps(plan["warm"])
        arm.encoder.ran.clear()
    turns: Dict[str, List[float]] = {mode: [] for mode in arms}
    for turn in range(plan["turns"]):
        for mode in list(arms)[:: -1 if turn % 2 else 1]:
            turns[mode].append(arms[mode].steps(plan["steps"]))
    found: Dict[str, Any] = {"plan": plan, "turns": turns, "size": dist.get_world_size()}
    found["layers"] = {mode: _slowest(arm.encoder.ran) for mode, arm in arms.items()}
    found["traffic"] = {mode: _traffic(arm.wrapped) for mode, arm in arms.items()}
    found["counts"] = {mode: counts(arm) for mode, arm in arms.items()}
    found["memory"] = peak()
    del arms
    gc.collect()
    return found


def _slowest(ran: Sequence[int]) -> float:
    """The layers of the rank that runs most of them in a step, in the mean over the steps."""
    most = torch.tensor(ran, dtype=torch.float32)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most.mean())


def counts(arm: Arm) -> Dict[str, float]:
    """Collectives of a step, and the autograd nodes that are looked at to find unused parameters."""
    steps = 8
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        arm.steps(steps)
    # What the profiler noted, without the tree that it makes of it, which takes seconds a mode.
    collectives = sum(event.name() == "gloo:all_reduce" for event in profile.profiler.kineto_results.events())
    nodes = 0
    if arm.wrapped.find_unused_parameters:
        nodes = _nodes(arm.wrapped(torch.randn(arm.plan["batch"], arm.plan["frames"], arm.plan["width"])).grad_fn)
        arm.encoder.zero_grad()
    return {"collectives": collectives / steps, "nodes": nodes}


def _nodes(end: Any) -> int:
    seen, waiting = {end}, [end]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen)


def peak() -> float:
    """The most memory that this process has had, in MB; of one mode only where it is alone in the plan."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _traffic(wrapper: Any) -> Any:
    seen = COUNTED.get(wrapper)
    return None if seen is None else [seen.sent, seen.saved, seen.buckets, seen.kept]


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
