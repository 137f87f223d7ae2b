"""Loops over DataLoaders in which ranks have different numbers of batches; each function fills ``record``.

Each is run as shipped, and with its loaders evened by hand (``how``), which is what it is compared with.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from tests.late.parting import Record, sums

# Batches of each rank in an epoch, two samples each.
LENGTHS = (4, 6, 5)
EPOCHS = 2


def rank() -> int:
    return int(distributed.get_rank())


def lengths() -> List[int]:
    return list(LENGTHS[: distributed.get_world_size()])


class Samples(Dataset):  # type: ignore[type-arg]
    """As many as a rank has; every rank has its own."""

    def __init__(self, batches: int) -> None:
        made = torch.Generator().manual_seed(rank())
        self.data = torch.randn(2 * batches, 4, generator=made)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


class Stream(IterableDataset):  # type: ignore[type-arg]
    """The same, one after the other; once only, if ``once``; ``broken`` is a sample that cannot be read."""

    def __init__(self, batches: int, once: bool = False, broken: int = -1) -> None:
        self.samples, self.broken = Samples(batches), broken
        self.left: Optional[Iterator[Any]] = iter(self.samples.data) if once else None

    def __iter__(self) -> Iterator[Any]:
        return map(self.read, range(len(self.samples))) if self.left is None else self.left

    def read(self, number: int) -> Any:
        if number == self.broken:
            raise ValueError("this sample cannot be read")
        return self.samples[number]


class Grouped(Sampler):  # type: ignore[type-arg]
    """Batches of two, of which its length says nothing true."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[List[int]]:
        return iter([index, index + 1] for index in range(0, self.size, 2))


def own() -> int:
    return lengths()[rank()]


def stream(**options: Any) -> Any:
    return DataLoader(Stream(own(), **options), batch_size=2)


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2))


class Loop:
    """A model that is trained, and what is recorded of it."""

    def __init__(self, record: Record) -> None:
        self.model = DistributedDataParallel(tiny())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.steps = record["steps"] = []

    def loss(self, batch: Any) -> Any:
        return self.model(batch).pow(2).mean()

    def step(self, batch: Any) -> None:
        self.loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps.append(sums(self.model))


def evened(loader: Any, how: str) -> Any:
    """The loader as it is, or, with a way, as many batches as on all ranks."""
    return by_hand(loader, how) if how else loader


def by_hand(loader: Any, how: str) -> Iterator[Any]:
    """As many batches as on all ranks, without ddpfix; the random state is as if nothing was read again."""
    target = {"stop": min, "pad": max}[how](lengths())
    given = 0
    for batch in itertools.islice(loader, target):
        given += 1
        yield batch
    while given < target:
        state = torch.get_rng_state()
        again = iter(loader)
        first = next(again)
        torch.set_rng_state(state)
        for batch in itertools.chain([first], itertools.islice(again, target - given - 1)):
            given += 1
            yield batch


def trained(record: Record, loaders: Callable[[], Sequence[Any]], how: str = "", epochs: int = EPOCHS) -> None:
    """Train on the batches of a loader, or of several side by side."""
    loop, some = Loop(record), loaders()
    for _ in range(epochs):
        ready = [evened(loader, how) for loader in some]
        for batch in ready[0] if len(ready) == 1 else map(sum, zip(*ready)):
            loop.step(batch)
        # All ranks come here, and where they are not in step this is another rank's gradient.
        distributed.barrier()


# The loaders of loops that do nothing but train.
LOADERS: Dict[str, Callable[[], Sequence[Any]]] = {
    # A stream, of which nobody knows how long it is.
    "streamed": lambda: [stream()],
    # Its worker lives as long as the loader.
    "workers": lambda: [DataLoader(Stream(own()), batch_size=2, num_workers=1, persistent_workers=True)],
    # A dataset of each rank's own, shuffled by the global random state.
    "shuffled": lambda: [DataLoader(Samples(own()), batch_size=2, shuffle=True)],
    # A sampler of batches whose length is not that of the epoch.
    "grouped": lambda: [DataLoader(Samples(own()), batch_sampler=Grouped(2 * own()))],
    "zipped": lambda: [stream(), DataLoader(Samples(own()), batch_size=2)],
}
globals().update({name: functools.partial(trained, loaders=loaders) for name, loaders in LOADERS.items()})
# What is read once cannot be read again: with pad, too, all end with the shortest.
once = functools.partial(trained, loaders=lambda: [stream(once=True)], epochs=1)


def accumulated(record: Record, how: str = "") -> None:
    """Gradients of two batches."""
    loop, loader = Loop(record), stream()
    for _ in range(EPOCHS):
        for number, batch in enumerate(evened(loader, how)):
            if number % 2:
                loop.step(batch)
            else:
                with loop.model.no_sync():
                    loop.loss(batch).backward()
        distributed.barrier()


UNEVEN = (*LOADERS, "accumulated")


# These are right in plain torch.


def counts_steps(record: Record) -> None:
    """The loader is begun anew where it ends, until there were enough steps: lengths do not matter."""
    loop, loader = Loop(record), stream()
    while len(loop.steps) < 9:
        for batch in loader:
            loop.step(batch)
            if len(loop.steps) == 9:
                break


def breaks_off(record: Record) -> None:
    """All ranks leave the loop in one step."""
    loop, loader = Loop(record), stream()
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            if number == 3:
                break
            loop.step(batch)
        distributed.barrier()


def leaves_alone(record: Record) -> None:
    """The first rank leaves the loop earlier than the others, and trains on with something else."""
    loop, more = Loop(record), Samples(8)
    for number, batch in enumerate(stream()):
        if rank() == 0 and number == 2:
            break
        loop.step(batch)
    while len(loop.steps) < 7:
        loop.step(more.data[len(loop.steps) :][:2])


def evaluates(record: Record) -> None:
    """The first rank alone goes over another loader, in the midst of an epoch."""
    loop = Loop(record)
    data = DataLoader(Samples(4), batch_size=2, shuffle=True)
    for number, batch in enumerate(stream()):
        if number == 4:
            break
        loop.step(batch)
        if number == 2 and rank() == 0:
            with torch.no_grad():
                record["evaluated"] = [float(loop.model.module.eval()(each).sum()) for each in data]
            loop.model.train()


def joined(record: Record) -> None:
    """The program has torch do something about it."""
    loop, loader = Loop(record), stream()
    with loop.model.join():
        for batch in loader:
            loop.step(batch)


def catches(record: Record) -> None:
    """A sample of one rank cannot be read, and another one takes its place; all break off in one step."""
    loop = Loop(record)
    batches = iter(stream(broken=5 if rank() else -1))
    while len(loop.steps) < 4:
        try:
            batch = next(batches)
        except ValueError:
            continue
        loop.step(batch)


def shares_out(record: Record) -> None:
    """The first rank reads, and sends the others what they train on."""
    loop = Loop(record)
    batches = iter(DataLoader(Samples(6), batch_size=2)) if rank() == 0 else None
    for _ in range(6):
        batch = next(batches) if batches is not None else torch.empty(2, 4)
        distributed.broadcast(batch, 0)
        loop.step(batch)


def looks_aside(record: Record) -> None:
    """The first rank alone looks at a batch of another loader in each step, before it asks for its own."""
    loop = Loop(record)
    aside = iter(DataLoader(Samples(7), batch_size=2)) if rank() == 0 else None
    batches, record["evaluated"] = iter(stream()), []
    while len(loop.steps) < 4:
        if aside is not None:
            with torch.no_grad():
                record["evaluated"].append(float(loop.model.module(next(aside)).sum()))
        loop.step(next(batches))


RIGHT = ("looks_aside", "breaks_off", "leaves_alone", "evaluates", "joined", "catches", "shares_out")
