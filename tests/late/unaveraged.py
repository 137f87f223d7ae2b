"""Models that are never averaged, those that the program averages itself, and ranks with other numbers of backwards."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, Callable, Dict, Sequence

import torch
from torch import distributed, nn

from tests.late.parting import STEPS, averaged, batch, logged, note, second_rank, sgd, train, wrapped

Record = Dict[str, Any]
Between = Callable[[Any, int], Any]


def nothing(model: Any, step: int) -> None:
    pass


def loss(model: Any, step: int) -> Any:
    return model(batch(step)).pow(2).mean()


def trained(
    record: Record,
    before: Between = nothing,
    after: Between = nothing,
    inside: bool = True,
    optimizer: Callable[[Any], Any] = sgd,
    **ddp: Any,
) -> None:
    """Train under ``no_sync``.

    Args:
        record: has the parameters after each step.
        before: called with the model and the step, in front of the optimizer's step.
        after: the same, behind it.
        inside: whether the optimizer steps under ``no_sync`` as well.
        optimizer: makes it.
        ddp: keywords of DistributedDataParallel.
    """
    model = wrapped(**ddp)
    steps = optimizer(model)
    for step in range(STEPS):
        steps.zero_grad()
        with contextlib.ExitStack() as stack:
            with model.no_sync():
                loss(model, step).backward()
                if inside:
                    stack.enter_context(model.no_sync())
            before(model, step)
            steps.step()
        after(model, step)
        # Without a gradient in common a rank could be done before the other one has begun.
        logged(step)
        note(record, model)
    flush()


def flush() -> None:
    """What the end of a program does, which a rank of these tests does not come to: log what waits for a lower rank."""
    lowest: Any = sys.modules.get("ddpfix.exchange.lowest_rank")
    if lowest is not None:
        lowest.flush()
    # The first rank keeps the store here, and no launcher has it when that one ends.
    logged(0)


def two_micro_batches(record: Record, averaged: Sequence[int] = ()) -> None:
    """Two micro-batches a step, of which some are averaged, and the others are under no_sync."""
    model = wrapped()

    def backward(step: int) -> None:
        for number in range(2):
            with contextlib.nullcontext() if number in averaged else model.no_sync():
                loss(model, 2 * step + number).backward()

    train(record, model, sgd(model), between=logged, backward=backward)
    flush()


def averaged_now_and_then(model: Any, step: int) -> None:
    """Local SGD with new tensors in the places of the parameters' data."""
    for parameter in model.parameters() if step % 3 == 2 else ():
        mean = parameter.data.clone()
        averaged(mean)
        parameter.data = mean


def of_the_first_rank(model: Any, step: int) -> None:
    for parameter in model.parameters():
        distributed.broadcast(parameter.data, 0)


def moved(model: Any, step: int) -> None:
    """The program moves the parameters of each rank itself."""
    for parameter in model.parameters():
        parameter.data.add_(torch.full_like(parameter, 1e-3 * (1 + distributed.get_rank())))


UNDER_NO_SYNC: Dict[str, Callable[[Record], None]] = {
    # Nothing is averaged: backward and optimizer are under no_sync (accelerate's accumulate within another one), or the
    # optimizer steps outside of it, or has more state, with DDP's flag.
    "within": trained,
    "outside": functools.partial(trained, inside=False),
    "flagged": functools.partial(
        trained, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01), find_unused_parameters=True
    ),
    # The program averages, or means it so.
    "gradients_by_hand": functools.partial(
        trained, before=lambda model, step: averaged(*(p.grad for p in model.parameters()))
    ),
    "parameters_by_hand": functools.partial(
        trained, after=lambda model, step: averaged(*(p.data for p in model.parameters()))
    ),
    "parameters_now_and_then": functools.partial(trained, after=averaged_now_and_then),
    "first_rank_rules": functools.partial(trained, after=of_the_first_rank),
    "noise": functools.partial(trained, after=moved),
    # No micro-batch is averaged, or the first one alone.
    "accumulated_within": two_micro_batches,
    "first_only": functools.partial(two_micro_batches, averaged=[0]),
}
globals().update(UNDER_NO_SYNC)


def flag_set_after(record: Record, before: bool = False) -> None:
    from tests.late import flag_set_after

    flag_set_after.run(record, before)
    flush()


# As the line advises.
flag_set_before: Any = functools.partial(flag_set_after, before=True)


def no_sync_around_backward(record: Record) -> None:
    """The forward does not see it: each backward is averaged."""
    model = wrapped()

    def backward(step: int) -> None:
        value = loss(model, step)
        with model.no_sync():
            value.backward()

    train(record, model, sgd(model), backward=backward)


class Inside(nn.Module):
    """Calls backward in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, inputs: Any) -> Any:
        value = self.layers(inputs).pow(2).mean()
        value.backward()
        return value.detach()


def backward_inside(record: Record) -> None:
    model = wrapped(Inside(), static_graph=True)
    train(record, model, sgd(model), between=logged, backward=lambda step: model(batch(step)))
    flush()


def another_forward(record: Record) -> None:
    """A forward for a log, between backward and step: nothing runs between it and the step."""
    model = wrapped()

    def backward(step: int) -> None:
        loss(model, step).backward()
        loss(model, step)

    train(record, model, sgd(model), backward=backward)


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


def local_steps(record: Record, steps: Sequence[int], then: Between = nothing, momentum: float = 0.9) -> None:
    """Train; some steps use gradients of no_sync alone, after the last of which something happens."""
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync() if step in steps else contextlib.nullcontext():
            loss(model, step).backward()
        optimizer.step()
        if step == steps[-1]:
            then(model, step)
        note(record, model)


mixed: Any = functools.partial(local_steps, steps=[2, 3])
# Steps of each rank by itself, then the first rank's parameters. A momentum would differ from then on.
warm_up: Any = functools.partial(local_steps, steps=[0, 1, 2], then=of_the_first_rank, momentum=0.0)


# Ranks with other numbers of backwards.


def _backwards(record: Record, numbers: Callable[[int], int]) -> None:
    """Train with a number of backwards in each step that the rank decides; the other one makes up for it at the end."""
    model = wrapped()

    def backward(step: int) -> None:
        for _ in range(numbers(step)):
            loss(model, step).backward()

    train(record, model, sgd(model), backward=backward)
    # Both ranks come to the end: whoever has called backward less often does so now.
    for _ in range(3 * STEPS - sum(map(numbers, range(STEPS)))):
        loss(model, 0).backward()


# How often a rank calls backward in a step.
NUMBERS: Dict[str, Callable[[int], int]] = {
    "twice": lambda step: 1 + second_rank(),
    # Both equally often, though not in each step.
    "as_often": lambda step: 1 + step % 2,
}
globals().update({name: functools.partial(_backwards, numbers=numbers) for name, numbers in NUMBERS.items()})
