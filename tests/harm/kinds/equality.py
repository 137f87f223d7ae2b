"""Objects of the program that may be equal, or have no hash, and whose attributes the program watches."""

import collections
import copy
import io
import pickle

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tests.harm.made import Net, batches, fit, meeting, net, noting, state, stepped
from tests.harm.program import program


class Unhashable(DDP):
    """Python takes the hash of a class that says what is equal."""

    def __eq__(self, other):
        return self is other


@program(sample=True)
def wrapper_without_a_hash(rank, size):
    wrapped = Unhashable(net())
    fit(wrapped, rank, optimizer=torch.optim.SGD(wrapped.module.parameters(), 0.1), other=True)
    text = io.BytesIO()
    torch.save(wrapped.module, text)
    again = copy.deepcopy(wrapped)
    fit(again, rank, optimizer=torch.optim.SGD(again.module.parameters(), 0.1), other=True)
    wrapped.eval()
    with torch.no_grad():
        wrapped(torch.ones(1, 4))
    kept = sorted(vars(wrapped)), sorted(vars(again)), len(pickle.dumps(wrapped.module))
    return state(wrapped.module), state(again.module), kept


class Labelled(DDP):
    """Its hash is that of a name which it has only later."""

    def __init__(self, module, name):
        super().__init__(module)
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Labelled) and self.name == other.name

    def __hash__(self):
        return hash(self.name)


class Sized(Net):
    """Equal to each model of its size."""

    def __init__(self, wide=8):
        super().__init__(wide)
        self.wide = wide

    def __eq__(self, other):
        return isinstance(other, Sized) and other.wide == self.wide

    def __hash__(self):
        return hash(self.wide)


@program(sample=True)
def wrappers_and_models_that_are_equal(rank, size):
    """Two models of one name, the second of which leaves a part out; one whose name changes; and equal models."""
    first, second = Labelled(net(), "twin"), Labelled(nn.Sequential(nn.Linear(4, 2)), "twin")
    again = copy.deepcopy(first)
    losses = [fit(first, rank, other=True), fit(second, rank), fit(again, rank, other=True)]
    third = Labelled(net(1), "twin")
    del first
    losses.append(fit(third, rank, other=True))
    third.name = "teacher"
    torch.manual_seed(0)
    students = [DDP(Sized()) for _ in range(3)]
    losses += [fit(each, rank, other=True) for each in (third, *students)]
    return losses, [state(each) for each in (second, again, third, *students)]


class Same(torch.optim.SGD):
    """Equal to each optimizer, without a hash."""

    def __eq__(self, other):
        return isinstance(other, torch.optim.Optimizer)


class Counted(torch.optim.SGD):
    """Equal to each optimizer of its rate."""

    def __eq__(self, other):
        return self.defaults["lr"] == other.defaults["lr"]

    def __hash__(self):
        return hash(self.defaults["lr"])


def optimizers_that_are_equal(rank, size):
    found = []
    for kind in (Same, Counted):
        models = [DDP(net(seed)) for seed in (0, 1)]
        steps = [kind(each.parameters(), 0.1) for each in models]
        for _ in range(3):
            found += [fit(each, rank, optimizer=step, other=True) for each, step in zip(models, steps)]
    return found


class Rows(Dataset):
    def __eq__(self, other):
        return isinstance(other, Rows)

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.zeros(2)


class Shards(DistributedSampler):
    def __eq__(self, other):
        return True


class Loads(DataLoader):
    def __eq__(self, other):
        return isinstance(other, Loads)


def loaders_and_samplers_that_are_equal(rank, size):
    rows = Rows()
    loaders = [Loads(rows, 2, sampler=Shards(rows)) for _ in range(2)]
    wrapped = DDP(net())
    seen = []
    for epoch in range(2):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
            for x, y in loader:
                (wrapped(x, other=True) - y).pow(2).mean().backward()
                seen.append(x)
    return seen, [each.grad for each in wrapped.parameters()]


Watched, Noted, Heavy = noting(DDP), noting(Net), meeting(nn.Parameter)


def noted(name):
    def method(self, *args, **kwargs):
        Noted.seen.append(("call", name))
        return getattr(super(Noted, self), name)(*args, **kwargs)

    return method


for each in ("named_modules", "named_parameters", "named_children", "modules", "parameters", "children"):
    setattr(Noted, each, noted(each))


def attributes_that_are_counted(rank, size):
    """Of a wrapper and of its module, while they are made and trained, and what the module is asked for."""
    torch.manual_seed(0)
    module = Noted()
    Noted.seen.clear()
    wrapped = Watched(module)
    made = [*Watched.seen], [*Noted.seen]
    Watched.seen.clear()
    Noted.seen.clear()
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    fit(wrapped, rank, optimizer=optimizer, other=True)
    with wrapped.no_sync():
        fit(wrapped, rank, steps=2, optimizer=optimizer, other=True)
    wrapped.eval()
    with torch.no_grad():
        wrapped(torch.ones(1, 4))
    return made, Watched.seen, Noted.seen


@program(sample=True)
def parameters_of_a_class_of_their_own(rank, size):
    module = nn.Linear(4, 2)
    with torch.no_grad():
        module.weight = Heavy(torch.ones(2, 4))
    Heavy.seen.clear()
    wrapped = DDP(module)
    made = list(Heavy.seen)
    Heavy.seen.clear()
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for x, y in batches(rank, 40):
        stepped(wrapped, optimizer, x, y)
    return collections.Counter(made), collections.Counter(Heavy.seen), [each.detach() for each in wrapped.parameters()]
