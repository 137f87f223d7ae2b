"""A model of a toolkit that skips layers, and how it is trained on ranks, and by hand in one process."""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence
from unittest import mock

import torch
from torch import nn

STEPS = 5


class Built(NamedTuple):
    """A model.

    Attributes:
        layers: the list that holds the layers which may be skipped.
        inputs: ``inputs(rank, step)`` gives the batch of a rank, the same whenever it is asked.
        rest: sets all rates of the model to 0, for the training by hand.
    """

    model: nn.Module
    layers: Any
    loss: Callable[[Any, Any], torch.Tensor]
    inputs: Callable[[int, int], Any]
    rest: Callable[[], Any]


def seed(number: int) -> None:
    """Seed all global generators."""
    import numpy

    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def watched(layers: Iterable[nn.Module]) -> List[int]:
    """A list that gets the number of each layer that computes something: a part of it with parameters is called."""
    ran: List[int] = []
    for number, layer in enumerate(layers):
        for part in layer.modules():
            if next(part.parameters(recurse=False), None) is not None:
                part.register_forward_hook(lambda *_, number=number: ran.append(number))  # type: ignore[misc]
    return ran


def streams() -> str:
    """Return a digest of the states of all global generators."""
    import numpy

    states: Any = (torch.get_rng_state().tolist(), random.getstate(), [str(each) for each in numpy.random.get_state()])
    return hashlib.sha256(repr(states).encode()).hexdigest()


def weights(model: nn.Module) -> List[float]:
    return [float(each.detach().double().sum()) for each in model.parameters()]


def trained(built: Built, wrapped: Any, rank: int, count: int = STEPS, sharded: bool = False) -> Dict[str, Any]:
    """Train a wrapped model for some steps.

    Returns the layers that ran, the loss, and the parameters (unless they are sharded) after each step; the generators.
    """
    # A list may draw where it is iterated over.
    ran = watched(built.layers._modules.values())
    seed(100 + rank)
    steps = made(wrapped)
    found: Dict[str, Any] = {"ran": [], "losses": [], "steps": []}
    for step in range(count):
        ran.clear()
        steps.zero_grad()
        loss = built.loss(wrapped, built.inputs(rank, step))
        loss.backward()
        steps.step()
        found["ran"].append(sorted({*ran}))
        found["losses"].append(float(loss.detach()))
        found["steps"] += [] if sharded else [weights(built.model)]
    found["streams"] = streams()
    return found


def made(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), 0.05)


def by_hand(built: Built, ran: Sequence[Sequence[int]], ranks: int) -> List[List[float]]:
    """The parameters after each step of a training in one process, without DDP and without ddpfix.

    The layers that are to be skipped are taken out of their list, no draw skips another one, and the gradients of the
    ranks' batches are averaged.
    """
    built.rest()
    optimizer, found = made(built.model), []
    for step, kept in enumerate(ran):
        optimizer.zero_grad()
        with only(built.layers, kept), no_draw_skips():
            total = sum(built.loss(built.model, built.inputs(rank, step)) for rank in range(ranks))
        (total / ranks).backward()  # type: ignore[union-attr]
        optimizer.step()
        found.append(weights(built.model))
    return found


@contextmanager
def only(layers: Any, kept: Sequence[int]) -> Iterator[None]:
    """Have a list hold some of its layers, and no others."""
    whole = layers._modules
    entries = list(whole.values())
    layers._modules = OrderedDict((str(place), entries[number]) for place, number in enumerate(kept))
    try:
        yield
    finally:
        layers._modules = whole


@contextmanager
def no_draw_skips() -> Iterator[None]:
    """Have each draw of a uniform number give 1, which is above all rates."""
    with ExitStack() as changes:
        one = mock.Mock(return_value=1.0)
        for name in ("random.random", "numpy.random.random", "numpy.random.rand"):
            changes.enter_context(mock.patch(name, one))
        changes.enter_context(mock.patch("torch.rand", lambda *sizes, **_: torch.ones(*sizes)))
        changes.enter_context(mock.patch.object(torch.Tensor, "uniform_", lambda tensor, *_: tensor.fill_(1)))
        yield
