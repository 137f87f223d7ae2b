"""Trains the classes of a file on two real ranks, with plain torch or under ddpfix, and notes which layers ran."""

from __future__ import annotations

import datetime
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.skipping import built
from tests.support import pool, scenario, serving


@dataclass
class Scenario(scenario.Scenario):
    """One run.

    Attributes:
        settings: arguments of ``ddpfix.activate``; None is plain torch.
    """

    file: str = "shapes"
    settings: Optional[Dict[str, str]] = None
    steps: int = 8
    wrapper: str = "ddp"
    only: Sequence[str] = ()
    timeout: float = 120


def train(scenarios: List[Scenario], folder: Path) -> Dict[str, List[Dict[str, Any]]]:
    """What each rank found, by scenario; none failed."""
    pool.train(Path(__file__), [each.plan(folder) for each in scenarios], folder, 2, {})
    found: Dict[str, List[Dict[str, Any]]] = {}
    for each in scenarios:
        for log, record in pool.records(folder, each.name, 2):
            assert record is not None and record["error"] is None, log
            found.setdefault(each.name, []).append(record)
    return found


def wrapped(model: nn.Module, wrapper: str, layers: Any) -> Any:
    """The model under DDP with the flag, or sharded layer by layer."""
    if wrapper == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({nn.Linear})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    if wrapper == "fully_shard":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for layer in (*layers._modules.values(), model):
            fully_shard(layer, mesh=mesh)
        return model
    return DistributedDataParallel(model, find_unused_parameters=True)


def trained(kind: type, rank: int, steps: int, wrapper: str) -> Dict[str, Any]:
    """What a class did (:func:`.built.trained`)."""
    built.seed(0)
    encoder: Any = kind()
    model = nn.Sequential(nn.Linear(4, 4), encoder)
    one = built.Built(model, encoder.layers, _loss, lambda *_: torch.randn(3, 4), dict)
    return built.trained(one, wrapped(model, wrapper, encoder.layers), rank, steps, wrapper != "ddp")


def _loss(whole: Any, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = whole(batch).pow(2).mean()
    return loss


def run(plan: Dict[str, Any], folder: Path) -> None:
    """Train all classes of a file, one after the other."""
    from importlib import import_module

    lines: List[str] = []
    if plan["settings"] is not None:
        import ddpfix

        ddpfix.activate(**plan["settings"])
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("ddpfix").addHandler(handler)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    rank = distributed.get_rank()
    for kind in import_module(f"tests.skipping.{plan['file']}").ALL:
        if not plan["only"] or kind.__name__ in plan["only"]:
            lines.clear()
            found = trained(kind, rank, plan["steps"], plan["wrapper"])
            plan["found"][kind.__name__] = {**found, "lines": list(lines)}
    distributed.barrier()


if __name__ == "__main__":
    serving.serve(Path(sys.argv[1]), run)
