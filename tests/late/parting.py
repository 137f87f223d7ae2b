"""Replicas that part, and replicas that differ for a while on purpose; each function fills ``record``."""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any, Callable, ContextManager, Dict, List, Optional

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

Record = Dict[str, Any]
# The first rank hears of a difference in one of the steps after the look that showed it.
STEPS = 20


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def frozen_net() -> nn.Module:
    made = net()
    made[2].requires_grad_(False)  # type: ignore[index]
    return made


def batch(step: int) -> Any:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + distributed.get_rank()))


def sums(*models: Any) -> List[float]:
    """What is compared of parameters: a sum of each."""
    return [float(p.detach().double().sum()) for model in models for p in model.parameters()]


def note(record: Record, *models: Any) -> None:
    """Record the parameters after a step."""
    record.setdefault("steps", []).append(sums(*models))


def loss(model: Any, step: int) -> Any:
    return model(batch(step)).pow(2).mean()


def train(record: Record, model: Any, optimizer: Any, between: Callable[[int], Any] = id, steps: int = STEPS) -> None:
    """Train, and record the parameters after each step."""
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
        note(record, model)
        between(step)


def logged(*_: Any) -> None:
    """A number is averaged for the log: ranks that have no gradient in common stay in step by it."""
    distributed.all_reduce(torch.ones(1))


def wrapped(module: Optional[nn.Module] = None, **options: Any) -> Any:
    return DistributedDataParallel(module or net(), **options)


def sgd(model: Any, lr: float = 0.1) -> Any:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def second_rank() -> bool:
    return bool(distributed.get_rank() == 1)


# Models whose replicas part, or differ for a while on purpose.
Act = Callable[[Any, int], Any]


def nothing(model: Any, step: int) -> None:
    pass


def backward_of(model: Any, step: int) -> None:
    loss(model, step).backward()


def trained(
    record: Record,
    between: Act = nothing,
    prepare: Callable[[Any], Any] = id,
    optimizer: Callable[[Any], Any] = sgd,
    backward: Act = backward_of,
    module: Callable[[], nn.Module] = net,
    around: Callable[[Any], ContextManager[None]] = lambda model: contextlib.nullcontext(),
    before: Act = nothing,
    after: Act = nothing,
    count: int = STEPS,
    **options: Any,
) -> None:
    """Train a model that is prepared once, and changed between steps.

    Args:
        around: stands around ``before`` and the optimizer's step; ``after`` comes next, then the note, and ``between``.
    """
    model = wrapped(module(), **options)
    prepare(model)
    steps = optimizer(model)
    for step in range(count):
        steps.zero_grad()
        backward(model, step)
        with around(model):
            before(model, step)
            steps.step()
        after(model, step)
        note(record, model)
        between(model, step)


def replace(model: Any) -> None:
    """A new last layer, the same on all ranks, in place of the one that DDP knows."""
    torch.manual_seed(1)
    model.module[2] = nn.Linear(8, 3)


def adapt(model: Any, step: int) -> None:
    """Each rank adapts the module by itself for a while, with new optimizers, and restores it."""
    kept = copy.deepcopy(model.module.state_dict())
    inner = torch.optim.SGD(model.module.parameters(), lr=0.05)
    for number in range(3):
        inner.zero_grad()
        backward_of(model.module, step + number)
        inner.step()
        # No gradient is averaged here that would hold a rank up, which may be done before the other one begins.
        distributed.barrier()
    model.module.load_state_dict(kept)


def change(model: Any, step: int) -> None:
    """One rank changes a parameter after the sixth step."""
    if step == 5 and second_rank():
        model.module[2].weight.data += 0.25


def keep_own(state, bucket):  # type: ignore[no-untyped-def]
    """A communication hook that leaves each rank its own gradients."""
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _add_noise(parameters: Any) -> None:
    generator = torch.Generator().manual_seed(distributed.get_rank())
    with torch.no_grad():
        for each in parameters:
            each.add_(torch.randn(each.shape, generator=generator), alpha=0.01)


def adding_noise(model: Any) -> Any:
    """A hook of the optimizer does it."""
    optimizer = sgd(model)
    optimizer.register_step_post_hook(lambda *arguments: _add_noise(model.parameters()))
    return optimizer


def noisy_backward(model: Any, step: int) -> None:
    """Each rank adds noise of its own to the averaged gradients."""
    backward_of(model, step)
    _add_noise(parameter.grad for parameter in model.parameters())


def averaged(*tensors: Any) -> None:
    for each in tensors:
        distributed.all_reduce(each)
        each /= distributed.get_world_size()


def with_head(record: Record, average: bool = False, broadcast: bool = False) -> None:
    """Train a model, and a head that is not wrapped: the program averages its gradients, or spreads its values."""
    model = wrapped()
    torch.manual_seed(1)
    head = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        head(model(batch(step))).pow(2).mean().backward()
        for parameter in head.parameters() if average else ():
            averaged(parameter.grad)
        optimizer.step()
        for parameter in head.parameters() if broadcast else ():
            distributed.broadcast(parameter.data, 0)
        note(record, model, head)


def called_past(
    record: Record,
    when: Callable[[int], bool] = lambda step: True,
    spread: Optional[Callable[[Any], Any]] = None,
    until: int = STEPS,
) -> None:
    """Call the module past its wrapper in some steps; ``spread`` makes ranks equal by hand until a step."""

    def between(model: Any, step: int) -> None:
        for parameter in model.parameters() if spread is not None and step < until else ():
            spread(parameter.data)  # type: ignore[misc]
        logged()

    trained(record, between, backward=lambda model, step: backward_of(model.module if when(step) else model, step))


def rate_of_a_group(record: Record) -> None:
    """One rank sets the rate of the second group after the sixth step, which is 0 in both until then."""
    model = wrapped()
    first, last = model.module[0].parameters(), model.module[2].parameters()
    optimizer = torch.optim.SGD([{"params": first}, {"params": last, "weight_decay": 0.01}], lr=0.1)

    def between(step: int) -> None:
        if step == 5 and second_rank():
            optimizer.param_groups[1]["weight_decay"] = 0.0

    train(record, model, optimizer, between=between)


def healthy(record: Record) -> None:
    model = wrapped()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    train(record, model, optimizer, between=lambda step: scheduler.step())


def joined(record: Record) -> None:
    """One rank has fewer batches, twice."""
    model = wrapped()
    optimizer = sgd(model)
    for _ in range(2):
        with Join([model]):
            train(record, model, optimizer, steps=6 if second_rank() else 8)


def post_local_sgd(record: Record) -> None:
    """torch's own local SGD: parameters are averaged every fourth step."""
    model = wrapped()
    own_rank = [distributed.new_group([rank]) for rank in range(2)][distributed.get_rank()]
    model.register_comm_hook(PostLocalSGDState(None, own_rank, 2), post_localSGD_hook)
    averager = PeriodicModelAverager(period=4, warmup_steps=2)
    train(record, model, PostLocalSGDOptimizer(sgd(model), averager))


def in_backward(record: Record) -> None:
    """An optimizer for each parameter."""
    model = wrapped()
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    for step in range(STEPS):
        model.zero_grad()
        backward_of(model, step)
        for optimizer in optimizers:
            optimizer.step()
        note(record, model)


def with_hook(hook: Any) -> Callable[[Any], Any]:
    return lambda model: model.register_comm_hook(None, hook)


def broadcast(data: Any) -> None:
    distributed.broadcast(data, 0)


PROGRAMS: Dict[str, Callable[[Record], None]] = {
    # A layer is trained from the seventh step on, and DDP, with its flag, has left it out when it was built.
    "set_free": functools.partial(
        trained,
        between=lambda model, step: model.module[2].requires_grad_(step >= 5),
        module=frozen_net,
        find_unused_parameters=True,
    ),
    "replaced": functools.partial(trained, prepare=replace, find_unused_parameters=True),
    "adapted": functools.partial(trained, between=adapt),
    "changed": functools.partial(trained, between=change),
    # One of torch's hooks hides nothing.
    "compressed_parts": functools.partial(trained, between=change, prepare=with_hook(fp16_compress_hook)),
    # One rank has another learning rate.
    "rates": functools.partial(trained, optimizer=lambda model: sgd(model, 0.05 if second_rank() else 0.1)),
    "own_hook": functools.partial(trained, prepare=with_hook(keep_own)),
    "noise_in_a_hook": functools.partial(trained, optimizer=adding_noise),
    "noise_in_gradients": functools.partial(trained, backward=noisy_backward),
    "head": with_head,
    "head_averaged": functools.partial(with_head, average=True),
    "head_broadcast": functools.partial(with_head, broadcast=True),
    "past": called_past,
    "past_in_half": functools.partial(called_past, when=lambda step: step >= 6),
    "past_for_a_while": functools.partial(called_past, when=lambda step: step in (2, 3)),
    "past_and_broadcast": functools.partial(called_past, spread=broadcast),
    "past_and_averaged": functools.partial(called_past, spread=averaged),
    "past_and_broadcast_in_half": functools.partial(called_past, spread=broadcast, until=6),
}
