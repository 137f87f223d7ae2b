"""Models that are never averaged, those that the program averages itself, and ranks with other numbers of backwards."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, Callable, Container, Dict, List

import torch
from torch import distributed, nn

from tests.late import flag_set_after, parting
from tests.late.parting import STEPS, Act, Record, averaged, backward_of, batch, logged, second_rank

EVERY = range(STEPS)


def loss(model: Any, step: int) -> Any:
    return model(batch(step)).pow(2).mean()


def trained(record: Record, inside: bool = True, local: Container[int] = EVERY, loss: Act = loss, **how: Any) -> None:
    """Train under ``no_sync`` in ``local`` steps, with the optimizer's step ``inside`` or not."""

    def backward(model: Any, step: int) -> None:
        with model.no_sync() if step in local else contextlib.nullcontext():
            loss(model, step).backward()

    if inside:
        how["around"] = lambda model: model.no_sync()
    by(record, backward, **how)


def by(record: Record, backward: Act, **how: Any) -> None:
    """Train with gradients that are made in a way. Ranks that have none in common stay together by a number."""
    parting.trained(record, logged, backward=backward, **how)
    flush()


def flush() -> None:
    """What the end of a program does, which a rank of these tests does not come to: log what waits for a lower rank."""
    lowest: Any = sys.modules.get("ddpfix.exchange.lowest_rank")
    if lowest is not None:
        lowest.flush()
    # The first rank keeps the store here, and no launcher has it when that one ends.
    logged(0)


def averaged_now_and_then(model: Any, step: int) -> None:
    """Local SGD with new tensors in the places of the parameters' data."""
    for parameter in model.parameters() if step % 3 == 2 else ():
        mean = parameter.data.clone()
        averaged(mean)
        parameter.data = mean


def of_the_first_rank(model: Any, step: int) -> None:
    for parameter in model.parameters():
        distributed.broadcast(parameter.data, 0)


def of_the_first_rank_once(model: Any, step: int) -> None:
    if step == 2:
        of_the_first_rank(model, step)


def moved(model: Any, step: int) -> None:
    """The program moves the parameters of each rank itself."""
    for parameter in model.parameters():
        parameter.data.add_(torch.full_like(parameter, 1e-3 * (1 + distributed.get_rank())))


class Inside(nn.Module):
    """Calls backward in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, inputs: Any) -> Any:
        value = self.layers(inputs).pow(2).mean()
        value.backward()
        return value.detach()


# How gradients are made in a step.


def two_micro_batches(model: Any, step: int, averaged: Container[int] = ()) -> None:
    """Of which some are averaged, and the others are under no_sync."""
    for number in range(2):
        with contextlib.nullcontext() if number in averaged else model.no_sync():
            loss(model, 2 * step + number).backward()


def around_backward(model: Any, step: int) -> None:
    """The forward does not see it: each backward is averaged."""
    value = loss(model, step)
    with model.no_sync():
        value.backward()


def another_forward(model: Any, step: int) -> None:
    """A forward for a log, between backward and step: nothing runs between it and the step."""
    backward_of(model, step)
    loss(model, step)


def backwards(record: Record, numbers: Callable[[int], int]) -> None:
    """Train with a number of backwards in each step that the rank decides; the other one makes up for it at the end."""
    models: List[Any] = []

    def backward(model: Any, step: int) -> None:
        for _ in range(numbers(step)):
            backward_of(model, step)

    parting.trained(record, backward=backward, prepare=models.append)
    # Both ranks come to the end: whoever has called backward less often does so now.
    for _ in range(3 * STEPS - sum(map(numbers, range(STEPS)))):
        backward_of(models[0], 0)


def by_hand(of: Callable[[Any], Any]) -> Act:
    return lambda model, step: averaged(*map(of, model.parameters()))


PROGRAMS: Dict[str, Callable[[Record], None]] = {
    # Nothing is averaged: backward and optimizer are under no_sync (accelerate's accumulate within another one), or the
    # optimizer steps outside of it, or has more state, with DDP's flag.
    "within": trained,
    "outside": functools.partial(trained, inside=False),
    "flagged": functools.partial(
        trained, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01), find_unused_parameters=True
    ),
    # The program averages, or means it so.
    "gradients_by_hand": functools.partial(trained, before=by_hand(lambda p: p.grad)),
    "parameters_by_hand": functools.partial(trained, after=by_hand(lambda p: p.data)),
    "parameters_now_and_then": functools.partial(trained, after=averaged_now_and_then),
    "first_rank_rules": functools.partial(trained, after=of_the_first_rank),
    "noise": functools.partial(trained, after=moved),
    # All ranks have the same batches, so that nothing has to be averaged.
    "same_data": functools.partial(trained, loss=lambda model, step: model(torch.ones(2, 4) * step).pow(2).mean()),
    # Some steps use gradients of no_sync alone.
    "mixed": functools.partial(trained, local=[2, 3], inside=False),
    # Steps of each rank by itself, then the first rank's parameters. A momentum would differ from then on.
    "warm_up": functools.partial(
        trained,
        local=[0, 1, 2],
        inside=False,
        after=of_the_first_rank_once,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    ),
    # No micro-batch is averaged, or the first one alone.
    "accumulated_within": functools.partial(by, backward=two_micro_batches),
    "first_only": functools.partial(by, backward=functools.partial(two_micro_batches, averaged=[0])),
    "no_sync_around_backward": functools.partial(by, backward=around_backward),
    "another_forward": functools.partial(by, backward=another_forward),
    "flag_set_after": functools.partial(by, backward=flag_set_after.backward),
    "flag_set_before": functools.partial(by, backward=functools.partial(flag_set_after.backward, before=True)),
    # How often a rank calls backward in a step: one more often, or both equally often, though not in each step.
    "twice": functools.partial(backwards, numbers=lambda step: 1 + second_rank()),
    "as_often": functools.partial(backwards, numbers=lambda step: 1 + step % 2),
}


def backward_inside(record: Record) -> None:
    by(record, lambda model, step: model(batch(step)), module=Inside, static_graph=True)
