"""Values that are read on the host in a training step, by whom; each scenario fills ``record``."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.accelerator import models
from tests.support import host_reads

Record = Dict[str, Any]
# Steps after which all is as in any later one: the replicas are compared after steps 1, 2, 4 and 8.
STEPS, USUAL = 24, 10


def branches(record: Record) -> None:
    """A model that leaves parameters unused, other ones on each rank."""
    _train(record, "branches", USUAL)


def branches_from_the_first_step(record: Record) -> None:
    _train(record, "branches", 0)


def speech(record: Record) -> None:
    """A model with LayerDrop."""
    _train(record, "speech", USUAL)


def speech_with_the_flag(record: Record) -> None:
    _train(record, "speech", USUAL, find_unused_parameters=True)


def speech_with_views(record: Record) -> None:
    _train(record, "speech", USUAL, gradient_as_bucket_view=True)


def _train(record: Record, kind: str, begin: int, **options: Any) -> None:
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
