"""How long a step takes with and without the agreement: epochs of both take turns in one process."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Dict, List

import torch
from torch import distributed
from torch.distributed.algorithms.join import _JoinConfig

from tests.wenet import epochs
from tests.wenet.uneven_tiny_model import Tiny


class Wide(Tiny):
    """The tiny model with something to compute and to reduce: 4 MB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(16)))

    def loss(self, feats: torch.Tensor) -> torch.Tensor:
        return super().loss(feats) + self.wide(feats.new_ones(64, 256)).mean()


def run(scenario: Dict[str, Any], folder: Path, original: Any) -> None:
    """Fill ``found["times"]`` with seconds a step (medians of epochs), for a small and a larger model.

    Args:
        original: ``Executor.train`` as it was before ddpfix.
    """
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    scenario["found"]["times"] = {kind.__name__: _times(scenario, folder, original, kind()) for kind in (Tiny, Wide)}


def _times(scenario: Dict[str, Any], folder: Path, original: Any, tiny: Tiny) -> Dict[str, float]:
    model = epochs.wrapped(tiny, "torch_ddp")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    scheduler = import_module("wenet.utils.scheduler").WarmupLR(optimizer, warmup_steps=4)
    doer = epochs.executor()()
    patched = doer.train
    times: Dict[str, List[float]] = {"unpatched": [], "ddpfix": []}
    for epoch in range(scenario["epochs"]):
        for name, train in (("unpatched", original.__get__(doer)), ("ddpfix", patched)):
            # What an epoch under model.join leaves on would slow the next one down.
            model._join_config = _JoinConfig.construct_disabled_join_config()
            doer.train = train
            distributed.barrier()
            begun = time.perf_counter()
            epochs.train(doer, scenario, epochs.loader(scenario), epoch, folder, model, optimizer, scheduler)
            times[name].append((time.perf_counter() - begun) / len(tiny.trained))
            tiny.trained.clear()
    return {name: median(seconds) for name, seconds in times.items()}
