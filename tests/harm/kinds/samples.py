"""Loaders whose samples are nobody's but the program's: they are not looked at, and not kept."""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from tests.harm.made import net, state
from tests.harm.program import program

STEPS = 160
DATA = TensorDataset(torch.arange(STEPS * 4.0).reshape(STEPS, 4).sin())


class Trainer:
    def __init__(self, rank):
        self.wrapped = DDP(net())
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), 0.05)
        self.draws = torch.Generator().manual_seed(rank)

    def randn(self, *shape):
        return torch.randn(*shape, generator=self.draws)

    def step(self, x, y=None):
        self.optimizer.zero_grad()
        out = self.wrapped(x, other=True)
        (out - (x[:, :2] if y is None else y)).pow(2).mean().backward()
        self.optimizer.step()

    def done(self):
        return state(self.wrapped)


@program(sample=True)
def loader_that_counts_steps(rank, size):
    trainer = Trainer(rank)
    for _ in range(2):
        for _step in DataLoader(range(STEPS), batch_size=2):
            trainer.step(trainer.randn(3, 4))
    return trainer.done()


@program(sample=True)
def critic_then_generator_in_one_order(rank, size):
    critic, maker = Trainer(rank), Trainer(rank)
    loader = DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, size, rank, shuffle=False))
    for _ in range(3):
        for (x,) in loader:
            critic.step(x)
        for (x,) in loader:
            maker.step(x.cos())
    return critic.done(), maker.done()


class Sample:
    """A sample whose every access is counted."""

    looked = []

    def __init__(self, index):
        self.__dict__["index"] = index

    def __getattr__(self, name):
        Sample.looked.append(name)
        raise AttributeError(name)

    def __repr__(self):
        Sample.looked.append("repr")
        return "Sample"

    def __len__(self):
        Sample.looked.append("len")
        return 3

    def __eq__(self, other):
        Sample.looked.append("eq")
        return True

    def __iter__(self):
        Sample.looked.append("iter")
        return iter(())


class Texts(Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return self.make(index)


def looked_at(make, kind, rank):
    trainer = Trainer(rank)
    for _ in range(2):
        for _batch in DataLoader(Texts(make), batch_size=2, collate_fn=list):
            trainer.step(trainer.randn(2, 4))
    counts = {name: kind.looked.count(name) for name in sorted(set(kind.looked))}
    return counts, trainer.done()


def samples_whose_methods_are_counted(rank, size):
    return looked_at(Sample, Sample, rank)


class Stream(IterableDataset):
    """A stream whose items are one object, filled anew."""

    def __init__(self, rank):
        self.draws = torch.Generator().manual_seed(rank)

    def __iter__(self):
        box = torch.zeros(4)
        for _ in range(STEPS):
            yield box.copy_(torch.randn(4, generator=self.draws))


def stream_that_reuses_its_memory(rank, size):
    trainer = Trainer(rank)
    for x in DataLoader(Stream(rank), batch_size=None):
        trainer.step(x[None])
    return trainer.done()
