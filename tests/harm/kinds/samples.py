"""Loaders that say nothing of what the model learns from."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from tests.harm.made import net, state
from tests.harm.program import program

# More steps than any comparison of first batches takes.
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


def labels_for_a_conditional_generator(rank, size):
    trainer, labels = Trainer(rank), TensorDataset(torch.arange(STEPS) % 4)
    for (label,) in DataLoader(labels, batch_size=2):
        trainer.step(trainer.randn(2, 4) + nn.functional.one_hot(label, 4))
    return trainer.done()


def shared_batches_with_noise(rank, size):
    trainer = Trainer(rank)
    for _ in range(2):
        for (x,) in DataLoader(DATA, batch_size=2):
            trainer.step(x + 0.1 * trainer.randn(*x.shape))
    return trainer.done()


def shared_batches_that_each_rank_cuts(rank, size):
    """All ranks read all of a batch, and take their part of it."""
    trainer = Trainer(rank)
    for _ in range(3):
        for (x,) in DataLoader(DATA, batch_size=4):
            trainer.step(x[rank::size])
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


def two_passes_of_one_epoch_shuffled_alike(rank, size):
    trainer, sampler = Trainer(rank), DistributedSampler(DATA, size, rank)
    loader = DataLoader(DATA, batch_size=4, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            trainer.step(x)
        for (x,) in loader:
            trainer.step(x.neg())
    return trainer.done()


def curriculum_from_easy_to_hard(rank, size):
    """The order is what matters, in each epoch."""
    trainer = Trainer(rank)
    part = torch.utils.data.Subset(DATA, range(rank, STEPS, size))
    for _ in range(4):
        for (x,) in DataLoader(part, batch_size=4):
            trainer.step(x)
    return trainer.done()


def replay_buffer_filled_from_one_source(rank, size):
    trainer, kept = Trainer(rank), []
    mine = random.Random(rank)
    for (x,) in DataLoader(DATA, batch_size=2):
        kept.append(x + mine.uniform(-0.1, 0.1))
        trainer.step(torch.cat(mine.sample(kept, min(3, len(kept)))))
    return trainer.done()


def meta_learning_with_shared_support(rank, size):
    trainer, tasks = Trainer(rank), torch.Generator().manual_seed(rank)
    for (support,) in DataLoader(DATA, batch_size=4):
        turn = torch.linalg.qr(torch.randn(4, 4, generator=tasks))[0]
        trainer.step(support @ turn)
    return trainer.done()


def one_validation_set_for_all(rank, size):
    trainer, losses = Trainer(rank), []
    mine = DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, size, rank))
    for epoch in range(3):
        mine.sampler.set_epoch(epoch)
        for (x,) in mine:
            trainer.step(x)
        trainer.wrapped.eval()
        with torch.no_grad():
            losses += [trainer.wrapped.module(x).mean() for (x,) in DataLoader(DATA, batch_size=4)]
        trainer.wrapped.train()
    return losses, trainer.done()


def distillation_from_one_input(rank, size):
    """The teacher sees what all see, the student a view of its own."""
    trainer, teacher = Trainer(rank), net(5).eval()
    for (x,) in DataLoader(DATA, batch_size=4):
        with torch.no_grad():
            target = teacher(x)
        trainer.step(x * (1 + 0.2 * trainer.randn(4, 1)), target)
    return trainer.done()


def masked_language_model(rank, size):
    """Everyone reads the same text; each rank hides other words of it."""
    trainer = Trainer(rank)
    for (x,) in DataLoader(DATA, batch_size=4):
        trainer.step(x * (trainer.randn(*x.shape) > -0.5))
    return trainer.done()


def indices_that_a_rank_looks_up(rank, size):
    trainer, table = Trainer(rank), torch.randn(STEPS, 4, generator=torch.Generator().manual_seed(rank))
    for index in DataLoader(range(STEPS), batch_size=4):
        trainer.step(table[index])
    return trainer.done()


def tensor_parallel_halves(rank, size):
    """Ranks of one model-parallel pair have to read the same samples; each is a replica of its own."""
    alone = [dist.new_group([each]) for each in range(size)]
    wrapped = DDP(net(rank), process_group=alone[rank])
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
    for (x,) in DataLoader(DATA, batch_size=4):
        optimizer.zero_grad()
        wrapped(x, other=True).pow(2).mean().backward()
        optimizer.step()
        both = wrapped(x).detach()
        dist.all_reduce(both)
    return state(wrapped), both


def dropout_masks_make_an_ensemble(rank, size):
    """One batch on all ranks on purpose; each has dropout of its own."""
    torch.manual_seed(rank)
    trainer = Trainer(rank)
    for (x,) in DataLoader(DATA, batch_size=8):
        trainer.step(nn.functional.dropout(x, 0.3))
    return trainer.done()


def evolution_strategy(rank, size):
    """All ranks score the same batches with a perturbation of their own; gradients are made by hand."""
    trainer, draws = Trainer(rank), torch.Generator().manual_seed(rank)
    for (x,) in DataLoader(DATA, batch_size=8):
        noise = [0.01 * torch.randn(each.shape, generator=draws) for each in trainer.wrapped.parameters()]
        kept = trainer.done()
        with torch.no_grad():
            for each, shift in zip(trainer.wrapped.parameters(), noise):
                each.add_(shift)
            score = trainer.wrapped.module(x).pow(2).mean()
            trainer.wrapped.load_state_dict(kept)
            for each, shift in zip(trainer.wrapped.parameters(), noise):
                change = shift * score
                dist.all_reduce(change)
                each.sub_(change)
        trainer.step(trainer.randn(2, 4))
    return trainer.done()


class Quiet(str):
    """Text that counts who looks at it."""

    looked = []

    def __repr__(self):
        Quiet.looked.append("repr")
        return super().__repr__()

    def __len__(self):
        Quiet.looked.append("len")
        return super().__len__()

    def __eq__(self, other):
        Quiet.looked.append("eq")
        return super().__eq__(other)

    __hash__ = str.__hash__


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


def text_that_counts_who_looks(rank, size):
    return looked_at(lambda index: Quiet(f"sentence {index}"), Quiet, rank)


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
