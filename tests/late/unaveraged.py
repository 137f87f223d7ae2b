"""Models that are never averaged, those that the program averages itself, and ranks with other numbers of backwards."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, ContextManager, Dict

import torch
from torch import distributed, nn

from tests.late.parting import STEPS, batch, logged, note, nothing, second_rank, sgd, wrapped

Record = Dict[str, Any]
Average = Callable[[Any], None]


def loss(model: Any, step: int) -> Any:
    return model(batch(step)).pow(2).mean()


def step_within(
    record: Record, model: Any, optimizer: Any, before: Average = nothing, after: Average = nothing, inside: bool = True
) -> None:
    """Train under ``no_sync``; ``before`` and ``after`` are called around the optimizer's step."""
    for step in range(STEPS):
        optimizer.zero_grad()
        with contextlib.ExitStack() as stack:
            with model.no_sync():
                loss(model, step).backward()
                if inside:
                    stack.enter_context(model.no_sync())
            before(step)
            optimizer.step()
        after(step)
        # Without a gradient in common a rank could be done before the other one has begun.
        logged(step)
        note(record, model)
    flush()


def flush() -> None:
    """What the end of a program does, which a rank of these tests does not come to: log what waits for a lower rank."""
    lowest: Any = sys.modules.get("ddpfix.ranks.store.lowest_rank")
    if lowest is not None:
        lowest.flush()
    # The first rank keeps the store here, and no launcher has it when that one ends.
    logged(0)


def averaged(tensors: Any) -> None:
    for each in tensors:
        distributed.all_reduce(each)
        each /= distributed.get_world_size()


# Nothing is averaged.


def within(record: Record) -> None:
    """Backward and optimizer under no_sync (accelerate's accumulate within another one)."""
    model = wrapped()
    step_within(record, model, sgd(model))


def outside(record: Record) -> None:
    """The optimizer steps outside of it."""
    model = wrapped()
    step_within(record, model, sgd(model), inside=False)


def flagged(record: Record) -> None:
    """With DDP's flag, and an optimizer with more state."""
    model = wrapped(find_unused_parameters=True)
    step_within(record, model, torch.optim.AdamW(model.parameters(), lr=0.01))


def accumulated_within(record: Record) -> None:
    """Two micro-batches a step, both under no_sync."""
    model = wrapped()
    optimizer = sgd(model)
    for step in range(STEPS):
        for number in range(2):
            with model.no_sync():
                loss(model, 2 * step + number).backward()
        optimizer.step()
        optimizer.zero_grad()
        logged(step)
        note(record, model)
    flush()


# The program averages, or means it so.


def gradients_by_hand(record: Record) -> None:
    model = wrapped()
    step_within(record, model, sgd(model), before=lambda step: averaged([p.grad for p in model.parameters()]))


def parameters_by_hand(record: Record) -> None:
    model = wrapped()
    step_within(record, model, sgd(model), after=lambda step: averaged([p.data for p in model.parameters()]))


def parameters_now_and_then(record: Record) -> None:
    """Local SGD with new tensors in the places of the parameters' data."""
    model = wrapped()

    def between(step: int) -> None:
        for parameter in model.parameters() if step % 3 == 2 else ():
            mean = parameter.data.clone()
            averaged([mean])
            parameter.data = mean

    step_within(record, model, sgd(model), after=between)


def first_rank_rules(record: Record) -> None:
    model = wrapped()

    def between(step: int) -> None:
        for parameter in model.parameters():
            distributed.broadcast(parameter.data, 0)

    step_within(record, model, sgd(model), after=between)


def noise(record: Record) -> None:
    """The program moves the parameters of each rank itself."""
    model = wrapped()

    def between(step: int) -> None:
        for parameter in model.parameters():
            parameter.data.add_(torch.full_like(parameter, 1e-3 * (1 + distributed.get_rank())))

    step_within(record, model, sgd(model), after=between)


def same_data(record: Record) -> None:
    """All ranks have the same batches, so that nothing has to be averaged."""
    model = wrapped()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.ones(2, 4) * step).pow(2).mean().backward()
            optimizer.step()
        logged(step)
        note(record, model)


def warm_up(record: Record) -> None:
    """Three steps of each rank by itself, then the first rank's parameters, then steps that are averaged."""
    model = wrapped()
    # A momentum would differ from then on.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        context: ContextManager[Any] = model.no_sync() if step < 3 else contextlib.nullcontext()
        optimizer.zero_grad()
        with context:
            loss(model, step).backward()
        optimizer.step()
        if step == 2:
            for parameter in model.parameters():
                distributed.broadcast(parameter.data, 0)
        note(record, model)


# Ranks with other numbers of backwards.


def _backwards(record: Record, model: Any, numbers: Callable[[int], int]) -> None:
    """Train with a number of backwards in each step that the rank decides; the other one makes up for it at the end."""
    optimizer = sgd(model)
    done = 0
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(numbers(step)):
            loss(model, step).backward()
            done += 1
        optimizer.step()
        note(record, model)
    # Both ranks come to the end: whoever has called backward less often does so now.
    for _ in range(3 * STEPS - done):
        loss(model, 0).backward()


def twice(record: Record) -> None:
    """One rank calls backward twice in each step."""
    _backwards(record, wrapped(), lambda step: 1 + second_rank())


def twice_once(record: Record) -> None:
    """One rank calls it twice in the second step."""
    _backwards(record, wrapped(), lambda step: 1 + (second_rank() and step == 1))


def thrice(record: Record) -> None:
    """One rank twice, the other one three times."""
    _backwards(record, wrapped(), lambda step: 2 + second_rank())


def as_often(record: Record) -> None:
    """Both call it equally often, though not in each step."""
    _backwards(record, wrapped(), lambda step: 1 + step % 2)


def line_search(record: Record) -> None:
    """LBFGS takes its steps by the loss of the closure, here each rank's own."""
    torch.manual_seed(0)
    model = wrapped(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=5, line_search_fn="strong_wolfe")
    rank = distributed.get_rank()
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(rank))
    targets = (inputs.sum(1, keepdim=True) * (1 + rank)).sin()

    def closure() -> Any:
        optimizer.zero_grad()
        value = (model(inputs) - targets).pow(2).mean()
        value.backward()
        return value

    for _ in range(6):
        optimizer.step(closure)
        note(record, model)


def mixed(record: Record) -> None:
    """Some steps use gradients of no_sync alone, between others that are averaged."""
    model = wrapped()
    optimizer = sgd(model)
    for step in range(STEPS):
        context: ContextManager[Any] = model.no_sync() if step in (2, 3) else contextlib.nullcontext()
        optimizer.zero_grad()
        with context:
            loss(model, step).backward()
        optimizer.step()
        note(record, model)
