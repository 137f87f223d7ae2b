"""What a generated program is given: models wrapped in the way of the run, averaging by hand, and the record."""

from __future__ import annotations

import hashlib
import pickle
import random
from typing import Any, Callable, Dict, List

import numpy
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.late.loops.loop import Alone, average, numbers

# Without DDP: a parameter that no rank used keeps what it had, or gets zeros, which ddpfix documents for its own mode.
BY_HAND = ("none", "zeros")
PARTS = ("parameters", "buffers", "state", "random", "logged")


class Kit:
    """One run of a program on this rank in a mode (one of :data:`BY_HAND`, or "ddp"), and what it has come to so far.

    Of :data:`PARTS` the record has a list each, with an item for each step of an optimizer (what the program logs: for
    each call), and it has its error. ``keep`` is called when it has grown.
    """

    def __init__(self, mode: str, number: int, keep: Callable[[], Any] = lambda: None) -> None:
        self.mode, self.number, self.keep = mode, number, keep
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.record: Dict[str, Any] = {part: [] for part in PARTS}
        self.record["error"] = None
        self._modules: List[nn.Module] = []
        self._optimizers: List[torch.optim.Optimizer] = []

    def wrap(self, module: nn.Module, **options: Any) -> Any:
        """The module under DDP, or alone; its state is recorded."""
        self._modules.append(module)
        return Alone(module, **options) if self.mode in BY_HAND else DistributedDataParallel(module, **options)

    def record_optimizers(self, *optimizers: torch.optim.Optimizer) -> None:
        self._optimizers.extend(optimizers)

    def average(self, *models: Any) -> None:
        """Average gradients by hand; stands where DDP has averaged them."""
        for model in models:
            if isinstance(model, Alone) and model.reduces:
                average(list(model.module.parameters()), zeros=self.mode == "zeros")

    def log(self, value: Any) -> None:
        self.record["logged"].append(repr(float(value.detach() if isinstance(value, torch.Tensor) else value)))

    def stepped(self) -> None:
        """Record the state after an optimizer's step."""
        parameters = [p for module in self._modules for p in module.parameters()]
        buffers = [b for module in self._modules for b in module.buffers()]
        states = [optimizer.state_dict()["state"] for optimizer in self._optimizers]
        moments = [each[key] for state in states for _, each in sorted(state.items()) for key in sorted(each)]
        grads = [torch.zeros(0) if p.grad is None else p.grad for p in parameters]
        self.record["parameters"].append(numbers(parameters))
        self.record["buffers"].append(numbers(buffers))
        self.record["state"].append(numbers([m for m in [*moments, *grads] if isinstance(m, torch.Tensor)]))
        self.record["random"].append(random_states())
        self.keep()

    def run(self, train: Callable[[Kit], None]) -> None:
        """Run the program; generators are equal on all ranks when it begins."""
        torch.set_default_dtype(torch.float32)
        random.seed(self.number)
        numpy.random.seed(self.number)
        torch.manual_seed(self.number)
        self.keep()
        try:
            train(self)
        except Exception as error:
            self.record["error"] = f"{type(error).__name__}: {error}"
            raise


def random_states() -> str:
    """A digest of torch's, numpy's and Python's generators."""
    states = (torch.get_rng_state().numpy().tobytes(), numpy.random.get_state(), random.getstate())
    return hashlib.sha256(pickle.dumps(states)).hexdigest()
