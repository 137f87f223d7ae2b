"""A rank in which torch.cuda is a stub that seems to be in use and notes each call: what, and from which thread.

Prints what it has noted. With ``asks`` a thread of ddpfix's kind calls it, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict, Set

import torch
from torch import distributed, nn

import ddpfix.auto  # noqa: F401
from ddpfix import log
from ddpfix.background import Background

CALLS: Dict[str, Set[str]] = {"ours": set(), "programs": set()}
STUBBED = (
    *(
        "synchronize",
        "current_device",
        "set_device",
        "empty_cache",
        "device_count",
        "memory_stats",
        "init",
        "_lazy_init",
    ),
    *("current_stream", "default_stream", "get_rng_state_all", "max_memory_allocated", "memory_reserved"),
    *("mem_get_info", "get_device_properties", "is_current_stream_capturing", "Event", "Stream"),
)


def note(name: str) -> None:
    import threading

    CALLS["ours" if threading.get_ident() in log.NOTED.unlisted else "programs"].add(name)


def stub(name: str, value: Any) -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        note(name)
        return value

    setattr(torch.cuda, name, call)


def train() -> None:
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


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    train()
    if sys.argv[1:] == ["asks"]:
        Background(lambda: torch.cuda.synchronize()).join(5)
    line = json.dumps({whose: sorted(names) for whose, names in CALLS.items()})
    # In one piece: both ranks write to the same pipe.
    os.write(1, f"{line}\n".encode())
    distributed.barrier()
    distributed.destroy_process_group()
