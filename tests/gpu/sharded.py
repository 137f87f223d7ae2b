"""LayerDrop under FSDP: what is gathered for the layers that run, and the same parameters as without FSDP."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator

import torch
from torch import distributed, nn

from tests.gpu import models, training, world
from tests.gpu.modes import active
from tests.sharded import wraps

_MODEL = "tiny wav2vec2"


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    """By step: the layers that ran, what was gathered and reduced, and how far parameters are from the reference."""
    training.exactly(True)
    try:
        with active(cell["mode"]), _sent() as sent:
            return Sharded(cell, sent).steps()
    finally:
        training.exactly(False)


class Sharded:
    """A sharded model beside the same model whole, whose gradients are averaged by hand."""

    def __init__(self, cell: Dict[str, Any], sent: wraps.Sent) -> None:
        self.options, self.sent = cell["options"], sent
        inner = models.built(_MODEL, self.options["rate"], world.device())
        self.alone = models.built(_MODEL, 0.0, world.device())
        self.ran = models.Ran(inner)
        self.model = {"FSDP1": fsdp1, "fully_shard": fsdp2}[cell["kind"]](inner)
        torch.manual_seed(100 + world.rank())
        # Not the usual epsilon: it would make much of gradients that are next to nothing.
        self.optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01, eps=1e-3) for m in (self.model, self.alone)]
        self.found: Dict[str, Any] = {"ran": [], "gathers": [], "reduces": [], "apart": 0.0}

    def steps(self) -> Dict[str, Any]:
        for number in range(self.options["steps"]):
            self.step(models.batch(_MODEL, number, world.rank(), world.device()))
        return self.found

    def step(self, batch: Dict[str, Any]) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.sent.take()
        models.loss(self.model(**batch)).backward()
        ran = self.ran.take()
        gathers, reduces = self.sent.take()
        with models.only(self.alone, ran):
            models.loss(self.alone(**batch)).backward()
        self.average()
        for optimizer in self.optimizers:
            optimizer.step()
        self.found["ran"].append(ran)
        self.found["gathers"].append(len(gathers))
        self.found["reduces"].append(len(reduces))
        self.found["apart"] = max(self.found["apart"], self.apart())

    def average(self) -> None:
        """The mean over ranks; all of them have left out the same layers, or there is an error here."""
        for parameter in self.alone.parameters():
            if parameter.grad is not None:
                parameter.grad = world.mean(parameter.grad)

    def apart(self) -> float:
        """The largest difference of a parameter, of this rank's."""
        wholes = dict(self.alone.named_parameters())
        with wraps.whole(self.model) as mine, torch.no_grad():
            return max(float((mine[name].reshape_as(value) - value).abs().max()) for name, value in wholes.items())


def fsdp1(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({type(module) for _, module in models.layers_of(model)})
    return FullyShardedDataParallel(model, device_id=world.device(), auto_wrap_policy=policy, use_orig_params=True)


def fsdp2(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device().type, (distributed.get_world_size(),))
    for _, layer in models.layers_of(model):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@contextlib.contextmanager
def _sent() -> Iterator[wraps.Sent]:
    """Counts collectives; torch's functions are put back at the end."""
    names = [name for name in (*wraps.Sent._GATHERS, *wraps.Sent._REDUCES) if hasattr(distributed, name)]
    stock = {name: getattr(distributed, name) for name in names}
    try:
        yield wraps.Sent()
    finally:
        for name, function in stock.items():
            setattr(distributed, name, function)
