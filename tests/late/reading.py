"""Programs that read what they train on from DataLoaders; each function fills ``record``."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, TensorDataset

Record = Dict[str, Any]
SIZE = 32


class Samples(Dataset):  # type: ignore[type-arg]
    """Numbers; every rank has the same ones, unless ``offset`` says otherwise."""

    def __init__(self, size: int = SIZE, offset: int = 0) -> None:
        made = torch.Generator().manual_seed(7 + offset)
        self.inputs, self.labels = torch.randn(size, 4, generator=made), torch.arange(size) % 2

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Stream(IterableDataset):  # type: ignore[type-arg]
    """The same as a stream, or the part of one rank."""

    def __init__(self, shared: bool = True, size: int = SIZE) -> None:
        self.shared, self.size = shared, size

    def __iter__(self) -> Iterator[Any]:
        data = Samples(self.size)
        step = 1 if self.shared else distributed.get_world_size()
        for index in range(0 if self.shared else distributed.get_rank(), len(data), step):
            yield data[index]


def rank() -> int:
    return int(distributed.get_rank())


def wrapped(**options: Any) -> Any:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), **options)


def shared(data: Any, shuffle: bool = True, **options: Any) -> Any:
    return DistributedSampler(data, shuffle=shuffle, **options)


def step(model: Any, optimizer: Any, inputs: Any) -> None:
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    optimizer.step()


def numbers(model: Any) -> List[float]:
    return [float(p.detach().double().sum()) for p in model.parameters()]


def train(
    record: Record,
    loader: Any,
    epochs: int = 6,
    model: Any = None,
    begin: Callable[[int], Any] = lambda epoch: None,
    end: Callable[[Any], Any] = lambda model: None,
    chosen: Callable[[Any], Any] = lambda batch: batch["inputs"],
    most: Optional[int] = None,
) -> None:
    """Train, and record what was read and the parameters after each step, and the state of the generator at the end."""
    model = wrapped() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record["steps"], record["read"] = [], []
    for epoch in range(epochs):
        begin(epoch)
        for batch in itertools.islice(loader, most):
            inputs = chosen(batch)
            step(model, optimizer, inputs)
            record["read"].append(float(inputs.double().sum()))
            record["steps"].append(numbers(model))
        end(model)
    record["random"] = int(torch.randint(1 << 30, ()))


# All ranks train on the same samples.


def no_sampler(record: Record) -> None:
    train(record, DataLoader(Samples(), 4))


def shuffled_alike(record: Record) -> None:
    model = wrapped()
    train(record, DataLoader(Samples(), 4, shuffle=True), model=model)


def long(record: Record) -> None:
    """It is told before the first epoch has ended."""
    train(record, DataLoader(Samples(200), 4), epochs=1)


def with_workers(record: Record) -> None:
    train(record, DataLoader(Samples(), 4, num_workers=2, persistent_workers=True))


def stream(record: Record) -> None:
    train(record, DataLoader(Stream(), 4))


def endless(record: Record) -> None:
    def forever() -> Iterator[int]:
        while True:
            yield from range(SIZE)

    class Endless(torch.utils.data.Sampler):  # type: ignore[type-arg]
        def __init__(self) -> None:
            pass

        def __iter__(self) -> Iterator[int]:
            return forever()

    train(record, DataLoader(Samples(), 4, sampler=Endless()), epochs=1, most=40)


def without_batches(record: Record) -> None:
    """The sampler gives whole batches, which the dataset makes."""

    class Batched(Samples):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return {"inputs": self.inputs[4 * index : 4 * index + 4]}

    train(record, DataLoader(Batched(), None))


def wrong_rank(record: Record) -> None:
    """A sampler that was made before the process group had told it the rank."""
    data = Samples()
    sampler = shared(data, num_replicas=1, rank=0)
    train(record, DataLoader(data, 4, sampler=sampler), begin=sampler.set_epoch)


def accumulated(record: Record) -> None:
    """Two batches a step."""
    model = wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    record["steps"] = []
    for _ in range(6):
        for number, batch in enumerate(DataLoader(Samples(), 4)):
            model(batch["inputs"]).sum().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
                record["steps"].append(numbers(model))


def features(record: Record) -> None:
    """The model gets what was computed of whole batches."""
    train(record, DataLoader(Samples(), 4), chosen=lambda batch: batch["inputs"][:, None].repeat(1, 3, 1))


def mode_of_the_module(record: Record) -> None:
    """The mode is set on the module alone, as Lightning does."""
    model = wrapped()
    model.eval()
    model.module.train()
    train(record, DataLoader(Samples(), 4), model=model)


def unknown(record: Record) -> None:
    """Batches of a class into which nobody may look: the model is given a tensor of them."""

    class Opaque:
        __slots__ = ("kept",)

        def __init__(self, kept: Any) -> None:
            self.kept = kept

    def collate(samples: Sequence[Any]) -> Any:
        return Opaque(torch.stack([each["inputs"] for each in samples]))

    train(record, DataLoader(Samples(), 4, collate_fn=collate), chosen=lambda batch: batch.kept)


# They are right.


def right(record: Record) -> None:
    data = Samples()
    sampler = shared(data)
    train(record, DataLoader(data, 4, sampler=sampler), begin=sampler.set_epoch)


def right_with_workers(record: Record) -> None:
    data = Samples()
    sampler = shared(data)
    loader = DataLoader(data, 4, sampler=sampler, num_workers=2, persistent_workers=True)
    train(record, loader, begin=sampler.set_epoch)


def one_epoch(record: Record) -> None:
    data = Samples(300)
    train(record, DataLoader(data, 4, sampler=shared(data)), epochs=1)


def own_data(record: Record) -> None:
    """Each rank has a dataset of its own, and the same indices."""
    train(record, DataLoader(Samples(offset=rank()), 4))


def own_data_shuffled(record: Record) -> None:
    train(record, DataLoader(Samples(offset=rank()), 4, shuffle=True))


def own_stream(record: Record) -> None:
    train(record, DataLoader(Stream(False), 4))


def shuffled_apart(record: Record) -> None:
    """Each rank draws its own order of all samples."""
    data = Samples()
    train(record, DataLoader(data, 4, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(rank()))))


def evaluated(record: Record) -> None:
    """All ranks evaluate on all samples, in epochs and in the middle of one."""
    data = Samples()
    sampler = shared(data)
    whole = DataLoader(data, 4)

    def evaluate(model: Any) -> None:
        model.eval()
        with torch.no_grad():
            for batch in whole:
                model(batch["inputs"])
        for batch in itertools.islice(whole, 3):
            model(batch["inputs"])
        model.train()

    train(record, DataLoader(data, 4, sampler=sampler), begin=sampler.set_epoch, end=evaluate)


def evaluated_in_steps(record: Record) -> None:
    """An iterator of the evaluation goes on beside training, and comes between backward and step."""
    data = Samples()
    sampler = shared(data)
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = iter(DataLoader(Samples(500), 4))
    record["steps"] = []
    for epoch in range(12):
        sampler.set_epoch(epoch)
        for batch in DataLoader(data, 4, sampler=sampler):
            optimizer.zero_grad()
            model(batch["inputs"]).pow(2).mean().backward()
            model.eval()
            model(next(whole)["inputs"])
            model.train()
            optimizer.step()
            record["steps"].append(numbers(model))


def sliced(record: Record) -> None:
    """All ranks read the same batches, and each trains on its part of them."""
    train(record, DataLoader(Samples(), 4), chosen=lambda batch: batch["inputs"][rank() :: 2])


def sliced_in_length(record: Record) -> None:
    """All ranks read the same sequences, and each trains on its part of each (sequence parallelism)."""
    data = TensorDataset(torch.randn(SIZE, 8, 4, generator=torch.Generator().manual_seed(1)))
    train(record, DataLoader(data, 4), chosen=lambda batch: batch[0][:, 4 * rank() : 4 * rank() + 4])


def in_groups(record: Record) -> None:
    """Each model is trained by one rank; a batch is for all."""
    alone = [distributed.new_group([each]) for each in range(2)][rank()]
    train(record, DataLoader(Samples(), 4), model=wrapped(process_group=alone))
    # The first rank holds the store.
    distributed.barrier()


def in_parallel(record: Record) -> None:
    """Some of the ranks form a group: they may share samples on purpose (tensor parallelism)."""
    distributed.new_group([0, 1])
    train(record, DataLoader(Samples(), 4))


def one_batch(record: Record) -> None:
    """A loader of one batch: to see whether a model can learn it by heart."""
    train(record, DataLoader(Samples(4), 4), epochs=20)


def made_up(record: Record) -> None:
    """Batches that are all alike: to measure speed."""
    train(record, DataLoader(TensorDataset(torch.ones(SIZE, 4)), 4), chosen=lambda batch: batch[0])


def counts_steps(record: Record) -> None:
    """A loader counts the steps, and each rank makes its data."""
    model, made = wrapped(), torch.Generator().manual_seed(rank())
    train(record, DataLoader(range(SIZE), 4), model=model, chosen=lambda batch: torch.randn(4, 4, generator=made))  # type: ignore[arg-type]


def noisy(record: Record) -> None:
    """Each rank adds noise of its own to the same batches."""
    made = torch.Generator().manual_seed(rank())
    train(record, DataLoader(Samples(), 4), chosen=lambda batch: batch["inputs"] + torch.randn(4, 4, generator=made))


class Noisy(nn.Module):
    """Adds this rank's noise itself.

    Args:
        labels: whether it is given numbers of classes alone.
    """

    def __init__(self, labels: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Embedding(2, 4) if labels else nn.Linear(4, 4), nn.Linear(4, 2)
        self.made = torch.Generator().manual_seed(rank())

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.first(x) + torch.randn(len(x), 4, generator=self.made))


def noisy_within(record: Record) -> None:
    """The model does that."""
    train(record, DataLoader(Samples(), 4), model=DistributedDataParallel(Noisy()))


def labels(record: Record) -> None:
    """A generator is given labels, and draws for itself."""
    model = DistributedDataParallel(Noisy(labels=True))
    train(record, DataLoader(Samples(), 4), model=model, chosen=lambda batch: batch["labels"])


def one_order(record: Record) -> None:
    """Two passes an epoch in one order on purpose (critic, then generator)."""
    data = Samples()
    sampler = shared(data)
    train(record, DataLoader(data, 4, sampler=sampler), begin=lambda epoch: sampler.set_epoch(epoch // 2))


def accelerated(record: Record) -> None:
    """accelerate shares the batches out, or has the first rank read them all and hand them on."""
    from accelerate import Accelerator, utils

    made: Any = getattr(utils, "DataLoaderConfiguration", None)
    for dispatches in (False, True):
        choice = {"dispatch_batches": dispatches}
        accelerator = Accelerator(cpu=True, **({"dataloader_config": made(**choice)} if made else choice))
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        prepared: Any = accelerator.prepare(model, optimizer, DataLoader(Samples(64), 4, shuffle=True))
        model, optimizer, loader = prepared
        record["steps"] = []
        for _ in range(3):
            for batch in loader:
                optimizer.zero_grad()
                accelerator.backward(model(batch["inputs"]).pow(2).mean())
                optimizer.step()
                record["steps"].append(numbers(model))
