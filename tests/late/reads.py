"""Values that are read on the host in a training step, and calls of torch.cuda, by whom; each fills ``record``."""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, Set

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.accelerator import models
from tests.late.parting import Record
from tests.support import host_reads

# Steps after which all is as in any later one: the replicas are compared after steps 1, 2, 4 and 8.
STEPS, USUAL = 24, 10


def train(record: Record, kind: str, begin: int = USUAL, **options: Any) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(models.MODELS[kind](), **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + distributed.get_rank())
    for step in range(STEPS):
        if step == begin:
            counting = host_reads.counted()
            found = counting.__enter__()
        optimizer.zero_grad()
        models.loss(model(models.inputs(kind))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    counting.__exit__(None, None, None)
    record["all"] = [[*key, times] for key, times in found.items()]
    record["ddpfix"] = [[*key, times] for key, times in host_reads.of_ddpfix(found).items()]


STUBBED = (
    *("synchronize", "current_device", "set_device", "empty_cache", "device_count", "memory_stats", "init"),
    *("_lazy_init", "current_stream", "default_stream", "get_rng_state_all", "max_memory_allocated"),
    *("memory_reserved", "mem_get_info", "get_device_properties", "is_current_stream_capturing", "Event", "Stream"),
)


def cuda_calls(record: Record, asks: bool = False) -> None:
    """Where torch.cuda is a stub that seems to be in use; with ``asks`` a thread of ddpfix's kind calls it, too."""
    from ddpfix import log
    from ddpfix.background import Background

    calls: Dict[str, Set[str]] = {"ours": set(), "programs": set()}

    def stub(name: str, value: Any) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls["ours" if threading.get_ident() in log.NOTED.unlisted else "programs"].add(name)
            return value

        setattr(torch.cuda, name, call)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
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
