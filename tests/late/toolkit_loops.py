"""Loops of toolkits: backwards, or steps, in an unusual place, and ranks with different numbers of batches.

Each function fills ``record``; see ``test_manual`` and ``test_uneven``.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.late.parting import Record, sums
from tests.late.unaveraged import flush
from tests.late.uneven_loops import EPOCHS, Samples, lengths, rank, tiny

STEPS = 6


def data() -> DataLoader[Any]:
    samples = torch.randn(4 * STEPS, 4, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(samples), batch_size=2)


def net(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def adversarial(record: Record, strategy: str = "ddp") -> None:
    """A generator and a discriminator by Lightning's manual optimization, as its documentation has it."""
    import lightning

    from tests.support import small_lightning

    class Adversarial(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.automatic_optimization = False
            self.g, self.d = net(4, 8), net(8, 1)

        def training_step(self, batch: Any, number: int) -> None:
            makes, judges = self.optimizers()  # type: ignore[misc]
            for optimizer, sign in ((makes, 1), (judges, -1)):
                self.toggle_optimizer(optimizer)
                optimizer.zero_grad()
                self.manual_backward(sign * self.d(self.g(batch[0])).mean())
                optimizer.step()
                self.untoggle_optimizer(optimizer)
            record["steps"].append(sums(self))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.g.parameters(), 0.01), torch.optim.SGD(self.d.parameters(), 0.1, 0.9)

    record["steps"] = []
    small_lightning.fit_here(Adversarial(), data(), strategy=strategy, max_epochs=1)


def accumulate(record: Record, nested: bool = False, steps: int = 1) -> None:
    """accelerate's accumulate around each step; nested, the outer one is under no_sync where the inner one steps."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    torch.manual_seed(0)
    model = net(4, 2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data())
    record["steps"] = []

    def step(batch: Any) -> None:
        accelerator.backward(model(batch[0]).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()

    for batch in loader:
        with contextlib.ExitStack() as stack:
            for _ in range(2 if nested else 1):
                stack.enter_context(accelerator.accumulate(model))
            step(batch)
        accelerator.wait_for_everyone()
        record["steps"].append(sums(model))
    flush()


class Encoder(nn.Module):
    """An encoder for sentence-transformers, whose pooler takes no part in the mean over tokens, as BERT's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer, self.pooler = nn.Embedding(40, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, features: Dict[str, torch.Tensor], **_: Any) -> Dict[str, torch.Tensor]:
        hidden = torch.tanh(self.layer(self.embedding(features["input_ids"])))
        return {**features, "token_embeddings": hidden, "pooled": self.pooler(hidden[:, 0])}


def cached_loss(record: Record, **options: Any) -> None:
    """The cached loss of sentence-transformers; mini-batches hold 24 tokens, and ranks have unlike numbers of them."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(0)
    sentences = SentenceTransformer(modules=[Encoder(), Pooling(8)], device="cpu")
    model = nn.parallel.DistributedDataParallel(sentences, **options)
    loss: Any = CachedMultipleNegativesRankingLoss(sentences, mini_batch_num_tokens=24)
    # As the library's trainer does with the model that accelerate has wrapped.
    loss.model = model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    backwards: List[int] = []
    model.module[0].layer.weight.register_hook(lambda _: backwards.append(1))
    record["steps"], record["backwards"] = [], []
    for batch in range(STEPS):
        backwards.clear()
        optimizer.zero_grad()
        loss([pairs(2 * batch), pairs(2 * batch + 1)], None).backward()
        optimizer.step()
        record["steps"].append(sums(model))
        record["backwards"].append(len(backwards))


def pairs(number: int) -> Dict[str, torch.Tensor]:
    """A side of four pairs, each of 1 to 20 tokens."""
    draw = torch.Generator().manual_seed(100 * number + distributed.get_rank())
    lengths = torch.randint(1, 21, (4, 1), generator=draw)
    mask = (torch.arange(20) < lengths).long()
    return {"input_ids": torch.randint(1, 40, (4, 20), generator=draw) * mask, "attention_mask": mask}


# Ranks with different numbers of batches: a part of a stream is longer than another, as after split_dataset_by_node.


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


class Named(Part):
    """Samples with the name of the argument that they are for."""

    def __iter__(self) -> Iterator[Any]:
        return ({"inputs": each} for each in super().__iter__())


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
    data = Named(how, distributed.get_world_size())
    Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Note()]).train()


def lightened(record: Record, how: str = "") -> None:
    """Lightning."""
    from tests.support import small_lightning

    class Module(small_lightning.Module):
        def on_train_batch_end(self, *others: Any) -> None:
            record["steps"].append(sums(self))

        def on_train_epoch_end(self) -> None:
            # As the checkpoint callback does.
            self.trainer.strategy.barrier()

    record["steps"] = []
    small_lightning.fit_here(Module(tiny()), DataLoader(Part(how), batch_size=2), max_epochs=EPOCHS)


# The distribution that each needs.
TOOLKITS = {"accelerated": "accelerate", "trained": "transformers", "lightened": "lightning"}
