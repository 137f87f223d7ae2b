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

from tests.harm.made import batches, state, steps
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
def second_backward_of_an_iterator(rank, size):
    wrapped, aux = DDP(net()), nn.Linear(4, 1)
    seen = []
    for step, (x, _) in enumerate(batches(rank, 8)):
        wrapped.zero_grad()
        aux.zero_grad()
        wrapped(x).sum().backward()
        if step >= 5:
            torch.autograd.backward(aux(torch.ones(1, 4)).sum() for _ in range(2))
        seen.append(None if aux.weight.grad is None else aux.weight.grad.clone())
    return seen, state(wrapped)


def first_backward_of_an_iterator(rank, size):
    wrapped = DDP(net())
    for x, _ in batches(rank, 6):
        torch.autograd.backward(iter([wrapped(x).sum()]))
    return [each.grad.clone() for each in wrapped.parameters()]


def backward_of_a_dictionarys_values(rank, size):
    wrapped = DDP(net())
    for x, _ in batches(rank, 6):
        losses = {"one": wrapped(x).sum()}
        torch.autograd.backward(tensors=losses.values())
    return [each.grad.clone() for each in wrapped.parameters()]


@dataclasses.dataclass(eq=False)
class Node:
    h: torch.Tensor
    parent: object = None
    kids: list = dataclasses.field(default_factory=list)


def tree(h):
    root = Node(h)
    root.kids.append(Node(h.tanh(), root))
    return root


@program(sample=True)
def output_is_a_tree_that_knows_its_parents(rank, size):
    return trained(tree, lambda root: root.kids[0].h, rank)


def output_holds_itself(rank, size):
    def made(h):
        output = {"h": h}
        output["all"] = [output, (output,)]
        return output

    return trained(made, lambda output: output["all"][1][0]["h"], rank)


def output_is_a_queue(rank, size):
    def made(h):
        lines = queue.Queue()
        lines.put(h)
        return lines

    return trained(made, lambda lines: lines.get_nowait(), rank)


class Lazy(collections.OrderedDict):
    """Gives each value once, and counts who looks."""

    looks = 0

    def values(self):
        Lazy.looks += 1
        return [self.pop(key) for key in list(self)]

    def __iter__(self):
        Lazy.looks += 1
        return super().__iter__()


def output_is_a_lazy_dictionary(rank, size):
    Lazy.looks = 0
    return trained(lambda h: Lazy(h=h), lambda lazy: lazy.values()[0], rank), Lazy.looks


class Once(tuple):
    """Yields once."""

    def __iter__(self):
        raise RuntimeError("this is walked by its owner alone")


def output_is_a_tuple_that_refuses(rank, size):
    return trained(lambda h: Once((h,)), lambda once: once[0], rank)


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


def output_has_a_field_that_is_not_set(rank, size):
    return trained(Partial, lambda partial: partial.h, rank)


def output_names_its_class(rank, size):
    return trained(lambda h: (Partial, h), lambda both: both[1], rank)


def output_may_not_be_read(rank, size):
    return trained(Guarded, lambda guarded: guarded.h, rank)


def output_has_a_large_list(rank, size):
    """Lists of 150,000 numbers beside the tensor: a step is as quick as in plain torch."""
    numbers = [[0.5] * 500 for _ in range(300)]
    begun = time.perf_counter()
    found = trained(lambda h: (numbers, h), lambda both: both[1], rank, count=50)
    # A walk through all of it takes a second and more.
    return found, time.perf_counter() - begun < 1.0


def output_has_a_thousand_tensors(rank, size):
    """The loss is of the last one."""
    return trained(lambda h: [*[torch.zeros(())] * 1000, h], lambda many: many[-1], rank)


class Counted(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Counted.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def backward_of_a_tensor_that_counts(rank, size):
    Counted.calls = 0
    wrapped = DDP(net())
    for step, (x, _) in enumerate(batches(rank, 8)):
        wrapped.zero_grad()
        loss = wrapped(x).sum().as_subclass(Counted)
        torch.autograd.backward([loss], retain_graph=step >= 5)
        if step >= 5:
            other = (wrapped.module[0].weight.detach().requires_grad_() * 2).sum().as_subclass(Counted)
            torch.autograd.backward([other])
    return Counted.calls, state(wrapped)


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
