"""``torch.compile`` of a wrapped model that skips layers: whether it trains as without, and into how many graphs."""

from __future__ import annotations

import time
from statistics import median
from typing import Any, Dict, List, Optional

import torch

from tests.gpu import models, training, world
from tests.gpu.modes import active


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    import torch._dynamo.utils

    options = cell["options"]
    _first_use(options["backend"])
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    # What another cell has compiled would make this one look quick.
    with torch._inductor.config.patch(force_disable_caches=True), active(cell["mode"]) as mode:
        inner = models.built(cell["model"], options["rate"], world.device())
        alone = models.built(cell["model"], 0.0, world.device())
        # The compiler splits graphs where buckets end, and refuses limits below that of the first bucket.
        model = training.wrapped(inner, mode, 25.0)
        found = _steps(cell, model, inner, alone)
    counters = torch._dynamo.utils.counters
    found.update(graphs=counters["stats"].get("unique_graphs", 0), breaks=sum(counters["graph_break"].values()))
    found.update(frames=counters["frames"].get("ok", 0))
    torch._dynamo.reset()
    return found


def _first_use(backend: str) -> None:
    """Whatever a compiler does once in a process must not count for the mode that comes first."""
    layer = torch.nn.Linear(4, 4, device=world.device())
    torch.compile(layer, backend=backend)(torch.ones(2, 4, device=world.device())).sum().backward()


def _steps(cell: Dict[str, Any], model: Any, inner: Any, alone: Any) -> Dict[str, Any]:
    compiled = torch.compile(model, backend=cell["options"]["backend"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    seconds: List[float] = []
    found: Dict[str, Any] = {"steps": [], "finite": True, "gradient": 0.0, "unused": 0}
    for number in range(cell["options"]["steps"]):
        batch = models.batch(cell["model"], number, world.rank(), world.device())
        alone.load_state_dict(inner.state_dict())
        world.barrier()
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        models.loss(compiled(**batch)).backward()
        optimizer.step()
        world.synchronize()
        seconds.append(time.perf_counter() - begun)
        apart = _apart(model, alone, batch, found)
        found["gradient"] = None if apart is None else max(found["gradient"], apart)
        found["steps"].append(world.digest(inner.parameters()))
        found["finite"] = found["finite"] and all(bool(torch.isfinite(p).all()) for p in inner.parameters())
    usual = median(seconds[len(seconds) // 2 :])
    return {**found, "step": usual * 1000, "compiling": sum(seconds) - usual * len(seconds)}


def _apart(model: Any, alone: Any, batch: Dict[str, Any], found: Dict[str, Any]) -> Optional[float]:
    """How far gradients are from the mean of those of the eager model without DDP; None where nobody knows what ran.

    A hook on a layer would be one more thing to compile: ddpfix says which layers were skipped.
    """
    import ddpfix

    try:
        skipped = {f"{skip.module}.{skip.layer}" for skip in ddpfix.skipped_layers(model)}
    except LookupError:
        return None
    names = [name for name, _ in models.layers_of(alone)]
    ran = [name for name in names if name.replace("layers.", "") not in skipped]
    alone.zero_grad(set_to_none=True)
    with models.only(alone, ran):
        models.loss(alone(**batch)).backward()
    worst, largest = 0.0, 0.0
    for mine, other in zip(model.parameters(), alone.parameters()):
        found["unused"] += other.grad is None
        expected = world.mean(torch.zeros_like(other) if other.grad is None else other.grad)
        difference = expected if mine.grad is None else mine.grad - expected
        worst = max(worst, float(difference.abs().max()))
        largest = max(largest, float(expected.abs().max()))
    return worst / largest
