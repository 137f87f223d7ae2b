"""What a generated program is given: models wrapped in the way of the run, averaging by hand, and the record."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import random
from typing import Any, Callable, Dict, Iterator, List

import numpy
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

# Without DDP: a parameter that no rank used keeps what it had, or gets zeros, which ddpfix documents for its own mode.
BY_HAND = ("none", "zeros")
PARTS = ("parameters", "buffers", "state", "random", "logged")


class Alone(nn.Module):
    """Stands where DistributedDataParallel stands, and does no more than broadcast buffers when DDP does."""

    def __init__(self, module: nn.Module, broadcast_buffers: bool = True, **_: Any) -> None:
        super().__init__()
        self.module, self.reduces = module, True
        self._broadcasts, self._due = broadcast_buffers, True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._broadcasts and self._due:
            for buffer in self.module.buffers():
                # Without a new version of the buffer, which a backward of an earlier forward would miss.
                distributed.broadcast(buffer.data, 0)
        self._due = torch.is_grad_enabled() and self.reduces
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.reduces = False
        try:
            yield
        finally:
            self.reduces = True


class Kit:
    """One run of a program on this rank.

    Args:
        mode: one of :data:`BY_HAND`, or "ddp".
        number: a seed for the generators.
        keep: called when the record has grown.

    Attributes:
        record: the results of the run so far: of :data:`PARTS` a list each, with an item for each step of an optimizer
            (what the program logs: for each call), and its error.
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
                average(list(model.module.parameters()), self.mode == "zeros")

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


def numbers(tensors: List[torch.Tensor]) -> str:
    """The values in double precision, which keeps their bits, as hexadecimal digits."""
    flat = [each.detach().double().flatten() for each in tensors]
    return bytes(torch.cat([*flat, torch.zeros(0).double()]).numpy().tobytes()).hex()


def random_states() -> str:
    """A digest of torch's, numpy's and Python's generators."""
    states = (torch.get_rng_state().numpy().tobytes(), numpy.random.get_state(), random.getstate())
    return hashlib.sha256(pickle.dumps(states)).hexdigest()


def average(parameters: List[nn.Parameter], zeros: bool) -> None:
    """Set gradients to their mean over ranks; a rank without one adds zero, as under DDP."""
    size = distributed.get_world_size()
    local = [torch.zeros_like(p) if p.grad is None else p.grad.detach() / size for p in parameters]
    has = torch.tensor([0.0 if p.grad is None else 1.0 for p in parameters], dtype=torch.get_default_dtype())
    whole = torch.cat([has, *(each.flatten() for each in local)])
    distributed.all_reduce(whole)
    means = torch.split(whole[len(parameters) :], [p.numel() for p in parameters])
    for p, had, mean in zip(parameters, whole.tolist(), means):
        if not had and not (zeros and p.requires_grad):
            continue
        if p.grad is None:
            p.grad = mean.view_as(p).clone()
        else:
            p.grad.detach().copy_(mean.view_as(p))


def alone(train: Callable[[Kit], None], number: int) -> None:
    """Run one program under torchrun, and print what it came to."""
    distributed.init_process_group("gloo")
    kit = Kit("ddp", number)
    kit.run(train)
    steps, end = len(kit.record["parameters"]), numpy.frombuffer(bytes.fromhex(kit.record["parameters"][-1])).sum()
    print(f"rank {kit.rank}: {steps} steps, sum of parameters {float(end)!r}")
    distributed.destroy_process_group()
