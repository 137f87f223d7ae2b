"""Trains a tiny model in one mode beside two yardsticks that leave out the same layers.

One is the same model without DDP, whose gradients are averaged by hand. The other is the same model under torch's own
DDP with ``find_unused_parameters=True``, wrapped without ddpfix, with an optimizer of its own: its parameters have to
be the same bit for bit after each step. Numbers of ddpfix differ from one wrapped model to the next, so runs in two
modes could not be compared with each other.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Optional, Sequence

import torch
from torch import nn

from tests.gpu import models, training, world
from tests.gpu.sections import most
from tests.gpu.training import MODES, Mode, active
from tests.sharded import wraps
from tests.support import recorder

# Gradients that are next to nothing beside the others are measured by these.
_FLOOR = 1e-3


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    """All there is to be compared with other ranks and with the yardsticks, step by step."""
    # What is wrapped while ddpfix is off stays torch's.
    yardstick = Side(cell, MODES["flag"], 0.0)
    with active(cell["mode"]) as mode:
        exact = Exact(cell, mode, yardstick)
        for number in range(cell["options"]["steps"]):
            exact.step(number)
        return exact.found


class Side(training.Run):
    """A model under DDP with what trains it."""

    def __init__(self, cell: Dict[str, Any], mode: Mode, rate: float) -> None:
        self.name, self.options = cell["model"], cell["options"]
        super().__init__(self.name, rate, mode, 0)
        # Without weight decay and momentum, a gradient of zero is as good as none.
        if self.options.get("optimizer") == "sgd":
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.002, weight_decay=0.1)
        scaled = self.options.get("scaled")
        self.scaler: Any = torch.amp.GradScaler(world.device().type, 1024.0) if scaled else None

    @property
    def scale(self) -> float:
        return self.scaler.get_scale() if self.scaler is not None else 1.0

    def train(self, numbers: Sequence[int], forced: Optional[List[List[str]]] = None, factor: float = 1.0) -> Any:
        """One optimizer step of some micro-batches; returns the names of the layers that ran in each."""
        self.optimizer.zero_grad(set_to_none=True)
        ran = []
        for index, number in enumerate(numbers):
            last = number == numbers[-1]
            held = wraps.only(self.inner, forced[index]) if forced is not None else contextlib.nullcontext()
            with held, contextlib.nullcontext() if last else self.model.no_sync():
                loss = forward(self.model, self.name, number, self.options) / len(numbers) * factor
                # A checkpoint calls its layers again in the backward.
                ran.append(self.ran.take())
                (self.scaler.scale(loss) if self.scaler is not None else loss).backward()
                self.ran.take()
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return ran


class Exact:
    """The model in a mode, the yardsticks beside it, and what was found."""

    def __init__(self, cell: Dict[str, Any], mode: Mode, yardstick: Side) -> None:
        self.name, self.options = cell["model"], cell["options"]
        self.mine, self.other = Side(cell, mode, self.options.get("rate", 0.0)), yardstick
        if "checkpoints" in self.options:
            from tests.late import compared

            kind = self.options["checkpoints"]
            where = "encoder-" if "whole encoder" in kind else "layers-"
            compared.checkpointed(self.mine.inner, where + kind.split()[-1])
        self.alone = models.built(self.name, 0.0, world.device())
        flag = bool(self.mine.model.find_unused_parameters)
        self.found: Dict[str, Any] = {"flag": flag, "gradient": 0.0, "parameters": 0.0, "same": 0, "unused": 0}
        self.found.update(steps=[], ran=[], scales=[], finite=True, known=True)
        # Building a model has given all ranks the same numbers again.
        torch.manual_seed(100 + world.rank())

    def step(self, number: int) -> None:
        accum = self.options.get("accum", 1)
        numbers = range(number * accum, (number + 1) * accum)
        overflow = number == self.options.get("overflow", -1)
        factor = float("inf") if overflow and world.rank() == 0 else 1.0
        self.alone.load_state_dict(self.mine.inner.state_dict())
        scale = self.mine.scale
        ran = self.mine.train(numbers, factor=factor)
        self.other.train(numbers, ran, factor)
        expected = self.reference(numbers, ran, scale)
        # Gradients are looked at after the optimizer's step, when every mode has reduced them.
        if not overflow:
            gradients = [p.grad for p in self.mine.inner.parameters()]
            self.found["gradient"] = most([self.found["gradient"], _apart(gradients, expected)])
        self.found["scales"].append(self.mine.scale)
        self.look(ran)

    def reference(self, numbers: Sequence[int], ran: List[List[str]], scale: float) -> List[torch.Tensor]:
        """The mean over ranks of gradients without DDP, with the parameters of before the step."""
        self.alone.zero_grad(set_to_none=True)
        for index, number in enumerate(numbers):
            with wraps.only(self.alone, ran[index]):
                # The scale is part of what is rounded, in half precision.
                loss = forward(self.alone, self.name, number, self.options) / len(numbers)
                (loss * scale).backward()
        parameters = list(self.alone.parameters())
        local = [torch.zeros_like(p) if p.grad is None else p.grad / scale for p in parameters]
        self.found["unused"] += sum(p.grad is None for p in parameters)
        flat = world.mean(torch.cat([each.reshape(-1) for each in local]))
        parts = flat.split([each.numel() for each in local])
        return [part.view_as(each) for part, each in zip(parts, local)]

    def look(self, ran: List[List[str]]) -> None:
        """Note the parameters after this step, and how far they are from those under torch's own flag."""
        mine, others = list(self.mine.inner.parameters()), list(self.other.inner.parameters())
        self.found["finite"] = self.found["finite"] and all(bool(torch.isfinite(p).all()) for p in mine)
        self.found["steps"].append(recorder.digest(mine))
        self.found["same"] += self.found["steps"][-1] == recorder.digest(others)
        apart = [float((one - other).detach().abs().max()) for one, other in zip(mine, others)]
        self.found["parameters"] = most([self.found["parameters"], *apart])
        self.found["ran"].append(ran)
        self.found["known"] = self.found["known"] and _known(self.mine.model, ran[-1])


def forward(model: nn.Module, name: str, number: int, options: Dict[str, Any]) -> torch.Tensor:
    batch = models.batch(name, number, world.rank(), world.device())
    with training.autocast(options.get("precision", "")):
        return models.loss(model(**batch))


def _apart(found: List[Optional[torch.Tensor]], expected: List[torch.Tensor]) -> float:
    """The largest difference, as a part of the largest number in the same gradient."""
    floor = _FLOOR * max(float(each.abs().max()) for each in expected)
    pairs = [(other if mine is None else mine - other, other) for mine, other in zip(found, expected)]
    return most(float(apart.abs().max()) / max(float(other.abs().max()), floor) for apart, other in pairs)


def _known(model: Any, ran: List[str]) -> bool:
    """Whether ddpfix names the layers that did not run; True where it has no say."""
    said = wraps.decided(model)
    names = {name for name, _ in wraps.layers_of(model.module)}
    return said is None or {name.replace("layers.", "") for name in names - set(ran)} == set(said)
