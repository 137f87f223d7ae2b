"""Random states: what torch, numpy and Python give is what they give in plain torch."""

import random

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from tests.harm.kinds.draws import PACKAGE, SKIPS, Percent
from tests.harm.made import batches, net, state
from tests.harm.program import program


def skipping(rate=1e-9):
    return DDP(Percent(rate), find_unused_parameters=True)


def step(wrapped, x):
    wrapped(x).pow(2).mean().backward()


@program(needs=PACKAGE, may=(SKIPS,), sample=True)
def state_is_the_one_that_was_set(rank, size):
    wrapped = skipping()
    for seed in range(4):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        with torch.random.fork_rng():
            step(wrapped, torch.randn(2, 4))
        assert torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        assert torch.equal(before, torch.get_rng_state())
    return before


@program(needs=PACKAGE, may=(SKIPS,))
def states_saved_in_each_step_and_resumed(rank, size):
    wrapped, out = skipping(), []
    optimizer = torch.optim.Adam(wrapped.parameters())
    for epoch in range(2):
        for x, _ in batches(rank, 4):
            step(wrapped, x + 0.1 * torch.randn(3, 4))
            optimizer.step()
            optimizer.zero_grad()
            out.append([torch.get_rng_state(), torch.default_generator.get_state(), torch.initial_seed()])
            out.append([repr(random.getstate()), repr(numpy.random.get_state(legacy=True)[1].tobytes())])
            wrapped.eval()
            with torch.no_grad():
                out.append(wrapped.module(x))
            wrapped.train()
        if epoch == 0:
            kept = (torch.get_rng_state(), random.getstate())
    torch.set_rng_state(kept[0])
    random.setstate(kept[1])
    return state(wrapped), out, kept[0], torch.get_rng_state()


@program(sample=True)
def four_epochs_with_all_streams(rank, size):
    """Dropout, a loader that shuffles, numpy and random in the loop."""
    data = TensorDataset(torch.arange(96.0).add(100 * rank).reshape(24, 4).sin())
    wrapped, drawn = DDP(net()), []
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for _ in range(4):
        for (x,) in DataLoader(data, batch_size=4, shuffle=True):
            x = x * random.uniform(0.9, 1.1) + 0.01 * torch.from_numpy(numpy.random.randn(*x.shape)).float()
            optimizer.zero_grad()
            wrapped(x, other=True).pow(2).mean().backward()
            optimizer.step()
            drawn += [random.random(), numpy.random.rand()]
    return drawn, state(wrapped), torch.rand(3)


class Shuffled(torch.utils.data.Sampler):
    def __iter__(self):
        order = list(range(24))
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return 24


class Sample:
    """A sample whose every access is counted."""

    looked = []

    def __getattr__(self, name):
        Sample.looked.append(name)
        raise AttributeError(name)


def looking(name, result):
    def method(self, *others):
        Sample.looked.append(name)
        return result

    return method


for each, result in {"repr": "Sample", "len": 3, "eq": True, "iter": iter(())}.items():
    setattr(Sample, f"__{each}__", looking(each, result))


class Stream(IterableDataset):
    """A stream whose items are one object, filled anew."""

    def __iter__(self):
        box, draws = torch.zeros(4), torch.Generator().manual_seed(9)
        for _ in range(24):
            yield (box.copy_(torch.randn(4, generator=draws)),)


def loaders_of_many_kinds(rank, size):
    """With a worker, with a generator, with a sampler of random numbers, over a stream; and of samples that count."""
    data = TensorDataset(torch.arange(96.0).reshape(24, 4).cos())
    shards, draws = DistributedSampler(data, size, rank), torch.Generator().manual_seed(5 + rank)
    wrapped, seen = DDP(net()), []
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    ways = ({"sampler": shards, "num_workers": 1}, {"shuffle": True, "generator": draws}, {"sampler": Shuffled()}, {})
    for epoch in range(2):
        shards.set_epoch(epoch)
        for how in ways:
            for (x,) in DataLoader(data if how else Stream(), batch_size=4, **how):
                optimizer.zero_grad()
                wrapped(x, other=True).pow(2).mean().backward()
                optimizer.step()
                seen.append(x)
    # A loader that counts steps, one of samples that count, and a critic before a generator, in one order.
    for batch in (*DataLoader(range(48), batch_size=2), *DataLoader([Sample()] * 48, batch_size=2, collate_fn=list)):
        wrapped(torch.ones(len(batch), 4), other=True).sum().backward()
    for model in (wrapped, DDP(net())) * 2:
        for (x,) in DataLoader(data, batch_size=4, sampler=shards):
            model(x, other=True).pow(2).mean().backward()
    return seen, state(wrapped), draws.get_state(), Sample.looked


def fork_rng_around_a_checkpoint(rank, size):
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    wrapped, out = DDP(layer), []
    for x, _ in batches(rank, 4):
        with torch.random.fork_rng():
            torch.manual_seed(rank)
            checkpoint(wrapped, x, use_reentrant=False).sum().backward()
            out.append(torch.get_rng_state())
        out.append(torch.rand(2))
    return out


def streams_after_every_kind_of_call(rank, size):
    """Construction, forward, backward, a barrier, evaluation: how far each stream has moved."""
    out = []

    def note():
        out.append([torch.get_rng_state()[:64], repr(random.getstate())[:400], numpy.random.get_state()[2]])

    note()
    wrapped = DDP(net(), find_unused_parameters=True)
    note()
    for x, y in batches(rank, 3):
        (wrapped(x) - y).pow(2).mean().backward()
        note()
    dist.barrier()
    note()
    wrapped.eval()(torch.ones(1, 4))
    note()
    return out


@program(needs=PACKAGE, may=(SKIPS,))
def state_shared_by_broadcast(rank, size):
    """Augmentation in step on all ranks: rank 0's state goes to the others and is compared there."""
    wrapped = skipping()
    for x, _ in batches(rank, 4):
        box = torch.get_rng_state() if rank == 0 else torch.zeros_like(torch.get_rng_state())
        dist.broadcast(box, 0)
        torch.set_rng_state(box)
        assert torch.equal(torch.get_rng_state(), box)
        step(wrapped, x)
        everyone = [torch.zeros_like(box) for _ in range(size)]
        dist.all_gather(everyone, torch.get_rng_state())
        assert all(torch.equal(each, everyone[0]) for each in everyone)
    return box
