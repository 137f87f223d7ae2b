"""One rank that trains encoders under DDP, and notes which layers ran in each step."""

from __future__ import annotations

import datetime
import logging
import sys
from pathlib import Path
from typing import Any, Dict, List

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.skipping.built import seed, streams
from tests.support import serving


def watched(encoder: Any, layers: List[nn.Module]) -> List[int]:
    """A list that gets the number of each layer that runs: it has called a module of its own."""
    ran: List[int] = []
    for number, layer in enumerate(layers):
        own = [each for each in layer.modules() if next(each.children(), None) is None]
        own[0].register_forward_hook(lambda *_, number=number: ran.append(number))  # type: ignore[misc]
    return ran


def wrapped(model: nn.Module, wrapper: str, layers: List[nn.Module]) -> Any:
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
        for layer in (*layers, model):
            fully_shard(layer, mesh=mesh)
        return model
    return DistributedDataParallel(model, find_unused_parameters=True)


def trained(kind: type, rank: int, steps: int, wrapper: str) -> Dict[str, Any]:
    """What a class did: its layers by step, its outputs and parameters, its random numbers."""
    from tests.skipping import shapes

    seed(0)
    encoder: Any = kind()
    layers = shapes.layers(encoder)
    ran = watched(encoder, layers)
    model = wrapped(nn.Sequential(nn.Linear(4, 4), encoder), wrapper, layers)
    seed(100 + rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    found: Dict[str, Any] = {"ran": [], "outputs": []}
    for _ in range(steps):
        ran.clear()
        output = model(torch.randn(3, 4))
        found["ran"].append(sorted({*ran}))
        found["outputs"].append(float(output.detach().double().sum()))
        output.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if wrapper == "ddp":
        found["weights"] = [float(each.detach().double().sum()) for each in model.parameters()]
    found["streams"] = streams()
    return found


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Train all classes of a file, one after the other."""
    from importlib import import_module

    lines: List[str] = []
    if scenario["settings"] is not None:
        import ddpfix

        ddpfix.activate(**scenario["settings"])
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("ddpfix").addHandler(handler)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    rank = distributed.get_rank()
    for kind in import_module(f"tests.skipping.{scenario['file']}").ALL:
        if not scenario["only"] or kind.__name__ in scenario["only"]:
            lines.clear()
            found = trained(kind, rank, scenario["steps"], scenario["wrapper"])
            scenario["found"][kind.__name__] = {**found, "lines": list(lines)}
    distributed.barrier()


if __name__ == "__main__":
    serving.serve(Path(sys.argv[1]), run)
