"""Ranks with different numbers of batches under accelerate, Trainer and Lightning; each function fills ``record``.

A rank's part of a stream is longer than another's, as after ``split_dataset_by_node``.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterator

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, IterableDataset

from tests.late.parting import sums
from tests.late.toolkit_loops import fit
from tests.late.uneven_loops import EPOCHS, Samples, lengths, rank, tiny

Record = Dict[str, Any]


class Part(IterableDataset):  # type: ignore[type-arg]
    """This rank's part of a stream, or the same evened by hand; accelerate and Trainer take one of ``times``."""

    def __init__(self, how: str, times: int = 1) -> None:
        own = lengths()[rank()]
        target = {"": own, "stop": min(lengths()), "pad": max(lengths())}[how]
        self.batches = Samples(own).data.split(2)
        self.numbers = [number % own for number in range(target) for _ in range(times)]

    def __iter__(self) -> Iterator[Any]:
        return (sample for number in self.numbers for sample in self.batches[number])


def accelerated(record: Record, how: str = "") -> None:
    """accelerate does not know how long a stream is."""
    import accelerate

    try:
        from accelerate.utils import DataLoaderConfiguration

        accelerator = accelerate.Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False)
        )
    except ImportError:
        accelerator = accelerate.Accelerator(cpu=True, dispatch_batches=False)
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Part(how, distributed.get_world_size()), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    record["steps"] = []
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(batch).pow(2).mean())
            optimizer.step()
            record["steps"].append(sums(model))
        accelerator.wait_for_everyone()


class Model(nn.Module):
    """As Trainer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny()

    def forward(self, inputs: Any) -> Any:
        return {"loss": self.net(inputs).pow(2).mean()}


class Named(IterableDataset):  # type: ignore[type-arg]
    """Samples with the name of the argument that they are for."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __iter__(self) -> Iterator[Any]:
        return ({"inputs": each} for each in self.part)


def trained(record: Record, how: str = "") -> None:
    """Trainer, which averages its loss over the ranks where an epoch ends."""
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Note(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            record["steps"].append(sums(model))

    record["steps"] = []
    options: Dict[str, Any] = {"use_cpu": True, "accelerator_config": {"dispatch_batches": False}}
    if not hasattr(TrainingArguments, "use_cpu"):
        options = {"no_cuda": True}
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        max_steps=9,
        logging_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        learning_rate=0.1,
        **options,
    )
    data = Named(Part(how, distributed.get_world_size()))
    Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Note()]).train()


def lightened(record: Record, how: str = "") -> None:
    """Lightning."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(batch).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_batch_end(self, *others: Any) -> None:
            record["steps"].append(sums(self))

        def on_train_epoch_end(self) -> None:
            # As the checkpoint callback does.
            self.trainer.strategy.barrier()

    record["steps"] = []
    fit(Module(), DataLoader(Part(how), batch_size=2), max_epochs=EPOCHS)


# The distribution that each needs.
TOOLKITS = {"accelerated": "accelerate", "trained": "transformers", "lightened": "lightning"}
for _name in TOOLKITS:
    for _how in ("stop", "pad"):
        vars()[f"{_name}_{_how}"] = functools.partial(vars()[_name], how=_how)
