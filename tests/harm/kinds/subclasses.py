"""Subclasses of torch's classes, whose own methods are called as in plain torch."""

import copy
import inspect

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import CheckpointFunction

from tests.harm.made import fit, net, state, steps
from tests.harm.program import program


class Mine(CheckpointFunction):
    """Counts what it recomputes."""

    calls = []

    @staticmethod
    def forward(ctx, function, preserve, *args):
        Mine.calls.append("forward")
        return CheckpointFunction.forward(ctx, function, preserve, *args)

    @staticmethod
    def backward(ctx, *grads):
        Mine.calls.append("backward")
        found = CheckpointFunction.backward(ctx, *grads)
        return (*found[:2], *(each * 0.5 for each in found[2:]))


class Recomputed(nn.Module):
    def __init__(self, function=Mine, inner=None):
        super().__init__()
        self.first, self.layer, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x):
        return self.function.apply(self.layer, True, self.first(x))


def recomputed(rank, function, **how):
    torch.manual_seed(0)
    wrapped = DDP(Recomputed(function), **how)
    fit_loss = []
    for x, _ in steps(torch.optim.SGD(wrapped.parameters(), 0.1), rank, 4):
        loss = wrapped(x).pow(2).mean()
        loss.backward()
        fit_loss.append(loss.detach())
    return fit_loss, state(wrapped)


class Named(Mine):
    """Its apply is its own as well."""

    @classmethod
    def apply(cls, function, preserve, *args):
        Mine.calls.append(cls.__name__)
        return super().apply(function, preserve, *args)


@program(sample=True)
def checkpoint_functions(rank, size):
    """Of its own, torch's, one in a static graph, and one whose apply is its own as well."""
    ways = (Mine, {}), (CheckpointFunction, {}), (Mine, {"static_graph": True}), (Named, {})
    return [recomputed(rank, function, **how) for function, how in ways], Mine.calls


class Timed(DDP):
    """A constructor with another signature, and attributes set before torch's."""

    def __init__(self, name, *, model, scale=1.0):
        object.__setattr__(self, "name", name)
        super().__init__(model, bucket_cap_mb=1)
        self.scale = scale

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs) * self.scale


def subclass_with_another_signature(rank, size):
    wrapped = Timed("student", model=net(), scale=0.5)
    fit(wrapped, rank, other=True)
    again = copy.deepcopy(wrapped)
    return state(wrapped), wrapped.name, str(inspect.signature(Timed)), type(again).__name__
