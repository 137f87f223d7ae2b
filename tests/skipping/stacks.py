"""Trains models of a toolkit on two real ranks: with plain torch, and under ddpfix."""

from __future__ import annotations

import datetime
import importlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from tests.support import pool, scenario, serving

RANK = Path(__file__)
# Names the module of tests whose function ``preload`` imports a toolkit before the ranks are forked.
_MODELS = "TEST_MODELS"
FAILURE = "Expected to have finished reduction in the prior iteration"


@dataclass
class Scenario(scenario.Scenario):
    """One training.

    Attributes:
        settings: arguments of ``ddpfix.activate``; None is plain torch.
        wrapper: "ddp", "fsdp", or "own": the module has a function ``fitted`` that wraps and trains.
    """

    models: str = ""
    model: str = ""
    settings: Optional[Dict[str, str]] = None
    flag: bool = False
    more: Dict[str, Any] = field(default_factory=dict)
    wrapper: str = "ddp"
    timeout: float = 90
    size: int = 2
    stays: float = 5.0
    environ: Dict[str, str] = field(default_factory=dict)


Rank = Tuple[str, Dict[str, Any]]


def train(scenarios: Sequence[Scenario], folder: Path) -> Dict[str, List[Rank]]:
    """What each rank printed and found, by scenario."""
    pool.train(RANK, [each.plan(folder) for each in scenarios], folder, 2, {_MODELS: scenarios[0].models})
    found: Dict[str, List[Rank]] = {}
    for each in scenarios:
        for log, record in pool.records(folder, each.name, 2):
            assert record is not None, log
            found.setdefault(each.name, []).append((log, record))
    return found


def wrapped(model: Any, scenario: Dict[str, Any]) -> Any:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    if scenario["wrapper"] == "fsdp":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    # An explicit False would be the program's own choice.
    flag = {"find_unused_parameters": True} if scenario["flag"] else {}
    return DistributedDataParallel(model, **flag, **scenario["more"])


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """One rank of one training."""
    if scenario["settings"] is not None:
        import ddpfix

        ddpfix.activate(**scenario["settings"])
    models = importlib.import_module(scenario["models"])
    import torch
    from torch import distributed

    from tests.skipping import built

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    built.seed(0)
    made = models.MODELS[scenario["model"]]()
    rank = distributed.get_rank()
    if scenario["wrapper"] == "own":
        scenario["found"].update(models.fitted(made, rank))
        return
    scenario["found"].update(built.trained(made, wrapped(made.model, scenario), rank))


if __name__ == "__main__":
    getattr(importlib.import_module(os.environ[_MODELS]), "preload", lambda: None)()
    serving.serve(Path(sys.argv[1]), run)
