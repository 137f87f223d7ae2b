"""What a program is given: models wrapped in the way of the mode, batches, steps, and the record of them."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

SIZE = 8
SETTINGS: Dict[str, Dict[str, Any]] = {"auto": {}, "late": {"unused": "late"}}
# For some programs only.
MORE: Dict[str, Dict[str, Any]] = {"static": {"unused": "static"}}
OURS = {**SETTINGS, **MORE}
MODES = ("plain", "hand", *SETTINGS)


class Alone(nn.Module):
    """Stands where DistributedDataParallel stands, and does no more than broadcast buffers when DDP does."""

    def __init__(self, module: nn.Module, process_group: Any = None, broadcast_buffers: bool = True, **_: Any) -> None:
        super().__init__()
        self.module, self.group, self.reduces = module, process_group, True
        self._broadcasts, self._due = broadcast_buffers, True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._broadcasts and self._due:
            for buffer in self.module.buffers():
                # Without a new version of the buffer, which a backward of an earlier forward would miss.
                distributed.broadcast(buffer.data, 0, group=self.group)
        self._due = torch.is_grad_enabled() and self.reduces
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.reduces = False
        try:
            yield
        finally:
            self.reduces = True

    def join(self, **_: Any) -> ContextManager[None]:
        return contextlib.nullcontext()

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Gradients are averaged by hand."""


class Loop:
    """One run of a program on this rank.

    Attributes:
        mode: of :data:`MODES` or :data:`MORE`; "hand" is the reference: :meth:`sync` averages, and nothing else does.
        record: the results of the run so far.
    """

    def __init__(self, mode: str, record: Dict[str, Any], counted: bool) -> None:
        self.mode, self.record = mode, record
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._models: Dict[str, Tuple[nn.Module, Optional[List[int]]]] = {}
        self._digest = ""
        self._profile: Any = Profile() if counted else None
        record.update(values=[], end=None, sent=None, ranks={})

    @property
    def hand(self) -> bool:
        return self.mode == "hand"

    # Models.

    def wrap(self, module: nn.Module, **options: Any) -> Any:
        """The module under DDP, or alone; its parameters are recorded after each step."""
        model = Alone(module, **options) if self.hand else DistributedDataParallel(module, **options)
        ranks = distributed.get_process_group_ranks(options["process_group"]) if "process_group" in options else None
        # The wrapper is the program's to keep or to drop.
        self.track(module, ranks)
        return model

    def track(self, model: nn.Module, ranks: Optional[Sequence[int]] = None) -> None:
        """Record a model's parameters after each step, which have to be the same on these ranks, or on all."""
        label = str(len(self._models))
        self._models[label] = (model, list(range(self.size) if ranks is None else ranks))
        self.record["ranks"][label] = self._models[label][1]

    def sync(self, *models: nn.Module) -> None:
        """Average the gradients by hand in the reference; stands where DDP would have them averaged."""
        if self.hand:
            for model in models:
                average(list(model.parameters()), getattr(model, "group", None))

    def update(self, optimizer: Any, *models: nn.Module) -> None:
        """:meth:`sync`, and the optimizer's step."""
        self.sync(*models)
        optimizer.step()

    # Data.

    def batch(self, step: int, salt: int = 0) -> torch.Tensor:
        """A batch of this rank's own."""
        return self.same(10007 * (self.rank + 1) + step, salt)

    def same(self, step: int, salt: int = 0) -> torch.Tensor:
        """A batch that all ranks share."""
        return torch.randn(4, SIZE, generator=torch.Generator().manual_seed(31 * step + 7919 * salt))

    # ddpfix.

    def activate(self) -> None:
        """Switch ddpfix on where the mode has it."""
        if self.mode in OURS:
            import ddpfix

            ddpfix.activate(**OURS[self.mode])

    def deactivate(self) -> None:
        if self.mode in OURS:
            import ddpfix

            ddpfix.deactivate()

    # Steps.

    def steps(self, count: int = 4) -> Iterator[int]:
        """The numbers of the steps; the parameters after a step are recorded when the next one begins."""
        for step in range(count):
            with self._named(f"loops: step {step}"):
                yield step
            self.record["values"].append(self._values())

    def _values(self) -> Dict[str, str]:
        return {label: numbers(model.parameters()) for label, (model, _) in self._models.items()}

    def trained(
        self, *models: nn.Module, count: int = 4, momentum: float = 0.0, optimizer: Any = None, to_none: bool = True
    ) -> Iterator[int]:
        """The numbers of steps as most programs have them: gradients are reset, averaged and stepped on around each."""
        optimizer = optimizer or sgd(*models, momentum=momentum)
        for step in self.steps(count):
            optimizer.zero_grad(**({} if to_none else {"set_to_none": False}))
            yield step
            self.update(optimizer, *models)

    def training(
        self, module: nn.Module, count: int = 4, momentum: float = 0.0, to_none: bool = True, **options: Any
    ) -> Iterator[Tuple[Any, int]]:
        """The same for a module that is wrapped with these options first: the model, and the number of each step."""
        model = self.wrap(module, **options)
        for step in self.trained(model, count=count, momentum=momentum, to_none=to_none):
            yield model, step

    def _named(self, name: str) -> ContextManager[Any]:
        if self._profile is None:
            return contextlib.nullcontext()
        named: ContextManager[Any] = torch.autograd.profiler.record_function(name)
        return named

    def run(self, train: Callable[[Loop], None]) -> None:
        """Run the program, and record where it ended even if it raised."""
        try:
            with self._profile or contextlib.nullcontext():
                train(self)
                # The thread that reduces notes the end of a collective after it has handed out its result.
                time.sleep(0.0 if self._profile is None else 0.05)
            if self._profile is not None:
                self.record["sent"] = sent(self._profile)
        finally:
            self.record["end"] = self._values()


def sgd(*models: nn.Module, lr: float = 0.1, momentum: float = 0.0) -> torch.optim.SGD:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=lr, momentum=momentum)


def numbers(tensors: Iterable[torch.Tensor]) -> str:
    """The values in double precision, which keeps their bits, as hexadecimal digits."""
    flat = [each.detach().double().flatten() for each in tensors]
    return bytes(torch.cat([*flat, torch.zeros(0).double()]).numpy().tobytes()).hex()


def average(parameters: List[nn.Parameter], group: Any = None, zeros: bool = False) -> None:
    """The mean over ranks of local gradients; what no rank has a gradient for keeps none, or gets zeros."""
    if group is not None and distributed.get_rank(group) < 0:
        return
    size = distributed.get_world_size(group)
    local = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() / size for p in parameters]
    has = torch.tensor([0.0 if p.grad is None else 1.0 for p in parameters])
    # Whatever the precision of the parameters: a sum of two numbers is rounded once in the end.
    whole = torch.cat([has.double(), *(each.detach().flatten().to(torch.float64) for each in local)])
    distributed.all_reduce(whole, group=group)
    pieces = torch.split(whole[len(parameters) :], [p.numel() for p in parameters])
    for p, had, piece in zip(parameters, whole.tolist(), pieces):
        if not (had or zeros) or not p.requires_grad:
            continue
        mean = piece.view_as(p).to(p.dtype)
        if p.grad is None or p.grad.is_sparse or p.grad.requires_grad:
            p.grad = mean.clone()
        else:
            with torch.no_grad():
                p.grad.copy_(mean)


class Profile(torch.autograd.profiler.profile):
    """Skips the parsing of all events, which would take longer than the program: only gloo's are needed."""

    def __init__(self) -> None:
        super().__init__(record_shapes=True)

    def _parse_kineto_results(self, result: Any) -> List[Any]:
        return []


def sent(profile: Any) -> List[List[int]]:
    """(collectives, elements) of each step, as the process group itself has seen them."""
    events = [(event.name(), event) for event in profile.kineto_results.events()]
    starts = sorted(_start(event) for name, event in events if name.startswith("loops: step"))
    counts = [[0, 0] for _ in starts]
    for name, event in events:
        step = sum(start <= _start(event) for start in starts) - 1
        if name.startswith("gloo:") and step >= 0:
            counts[step][0] += 1
            counts[step][1] += sum(elements(shape) for shape in event.shapes())
    return counts


def _start(event: Any) -> int:
    return int(event.start_ns() if hasattr(event, "start_ns") else event.start_us())


def elements(shape: Sequence[Any]) -> int:
    count = 1
    for length in shape:
        count *= int(length) if isinstance(length, int) else 1
    return count if shape else 0
