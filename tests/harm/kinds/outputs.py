"""What a program hands over is not consumed, not walked without end, and not asked: plain DDP looks at no output."""

import collections
import dataclasses
import gc
import queue
import time
import weakref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import batches, meeting, state, steps
from tests.harm.program import program


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def trained(make, loss_of, rank, count=8, **how):
    """Train a model whose output ``make`` has made of a tensor; ``loss_of`` takes the output apart."""
    torch.manual_seed(0)

    class Model(nn.Linear):
        def forward(self, x):
            return make(super().forward(x))

    wrapped = DDP(Model(4, 4), **how)
    for x, _ in steps(torch.optim.SGD(wrapped.parameters(), 0.1), rank, count):
        loss_of(wrapped(x)).square().mean().backward()
    return state(wrapped)


@program(sample=True)
def backwards_of_iterators(rank, size):
    """The second backward of a step is of a generator, the only one of an iterator, or of a dictionary's values."""
    seen = []
    for backward in (lambda loss: iter([loss]), lambda loss: {"one": loss}.values(), lambda loss: (loss,)):
        wrapped, aux = DDP(net()), nn.Linear(4, 1)
        for step, (x, _) in enumerate(batches(rank, 8)):
            wrapped.zero_grad()
            torch.autograd.backward(tensors=backward(wrapped(x).sum()))
            if step >= 5:
                torch.autograd.backward(aux(torch.ones(1, 4)).sum() for _ in range(2))
        seen += [state(wrapped), aux.weight.grad, *(each.grad for each in wrapped.parameters())]
    return seen


@dataclasses.dataclass(eq=False)
class Node:
    h: torch.Tensor
    parent: object = None
    kids: list = dataclasses.field(default_factory=list)


def tree(h):
    root = Node(h)
    root.kids.append(Node(h.tanh(), root))
    return root


def holds_itself(h):
    output = {"h": h}
    output["all"] = [output, (output,)]
    return output


def queued(h):
    lines = queue.Queue()
    lines.put(h)
    return lines


class Lazy(collections.OrderedDict):
    """Gives each value once, and counts who looks."""

    looks = 0

    def values(self):
        Lazy.looks += 1
        return [self.pop(key) for key in list(self)]

    def __iter__(self):
        Lazy.looks += 1
        return super().__iter__()


class Once(tuple):
    """Yields once."""

    def __iter__(self):
        raise RuntimeError("this is walked by its owner alone")


@dataclasses.dataclass
class Partial:
    h: torch.Tensor
    later: torch.Tensor = dataclasses.field(init=False)


@dataclasses.dataclass
class Guarded:
    h: torch.Tensor

    def __getattribute__(self, name):
        if name not in ("h", "read"):
            raise RuntimeError(f"nobody has to read {name}")
        return object.__getattribute__(self, name)


# What makes an output, and what takes it apart.
KINDS = {
    "a tree that knows its parents": (tree, lambda root: root.kids[0].h),
    "holds itself": (holds_itself, lambda output: output["all"][1][0]["h"]),
    "a queue": (queued, lambda lines: lines.get_nowait()),
    "a lazy dictionary": (lambda h: Lazy(h=h), lambda lazy: lazy.values()[0]),
    "a tuple that refuses": (lambda h: Once((h,)), lambda once: once[0]),
    "a field that is not set": (Partial, lambda partial: partial.h),
    "names its class": (lambda h: (Partial, h), lambda both: both[1]),
    "may not be read": (Guarded, lambda guarded: guarded.h),
    "a thousand tensors": (lambda h: [*[torch.zeros(())] * 1000, h], lambda many: many[-1]),
}


@program(sample=True)
def outputs_of_many_kinds(rank, size):
    Lazy.looks = 0
    return {name: trained(*kind, rank) for name, kind in KINDS.items()}, Lazy.looks


def output_has_a_large_list(rank, size):
    """Lists of 150,000 numbers beside the tensor: a step is as quick as in plain torch."""
    numbers = [[0.5] * 500 for _ in range(300)]
    begun = time.perf_counter()
    found = trained(lambda h: (numbers, h), lambda both: both[1], rank, count=50)
    # A walk through all of it takes a second and more.
    return found, time.perf_counter() - begun < 1.0


Counted = meeting(torch.Tensor)


def backward_of_a_tensor_that_counts(rank, size):
    Counted.seen.clear()
    wrapped = DDP(net())
    for step, (x, _) in enumerate(batches(rank, 8)):
        wrapped.zero_grad()
        loss = wrapped(x).sum().as_subclass(Counted)
        torch.autograd.backward([loss], retain_graph=step >= 5)
        if step >= 5:
            other = (wrapped.module[0].weight.detach().requires_grad_() * 2).sum().as_subclass(Counted)
            torch.autograd.backward([other])
    return Counted.seen, state(wrapped)


@program(sample=True)
def dropped_models_are_gone_at_once(rank, size):
    """Without the collector, after no step and after some, with an optimizer and without, and with an output kept."""
    gc.collect()
    gc.disable()
    try:
        DDP(net())
        return [gone(rank, steps, keeps, **how) for steps in (0, 1, 6) for keeps in (False, True) for how in WAYS]
    finally:
        gc.enable()


WAYS = ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}, {"static_graph": True})


def gone(rank, steps, keeps, **how):
    model = net()
    references = [weakref.ref(each) for each in model.parameters()]
    wrapped = DDP(model, **how)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    output = None
    for x, _ in batches(rank, steps):
        optimizer.zero_grad()
        output = wrapped(x)
        output.sum().backward()
        optimizer.step()
    del wrapped, optimizer, model
    if not keeps:
        del output
    return [reference() is None for reference in references]
