"""Ranks in which torch.cuda is a stub that seems to be in use; ``record`` has its calls, by whose thread it was.

With ``asks`` a thread of ddpfix's kind calls it, too.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, Dict, Set

import torch
from torch import nn

STUBBED = (
    *("synchronize", "current_device", "set_device", "empty_cache", "device_count", "memory_stats", "init"),
    *("_lazy_init", "current_stream", "default_stream", "get_rng_state_all", "max_memory_allocated"),
    *("memory_reserved", "mem_get_info", "get_device_properties", "is_current_stream_capturing", "Event", "Stream"),
)


def train(record: Dict[str, Any], asks: bool = False) -> None:
    from ddpfix import log
    from ddpfix.background import Background

    calls: Dict[str, Set[str]] = {"ours": set(), "programs": set()}

    def stub(name: str, value: Any) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls["ours" if threading.get_ident() in log.NOTED.unlisted else "programs"].add(name)
            return value

        setattr(torch.cuda, name, call)

    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name in STUBBED:
        stub(name, False)
    stub("is_initialized", True)
    for step in range(20):
        model(torch.randn(4, 8)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        # The watch of hangs looks, and the trace is written.
        time.sleep(1.0 if step == 10 else 0.1)
    if asks:
        Background(lambda: torch.cuda.synchronize()).join(5)
    record.update({whose: sorted(names) for whose, names in calls.items()})


asked: Any = functools.partial(train, asks=True)
