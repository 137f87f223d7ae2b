"""Loops of accelerate and Lightning with backwards, or steps, in an unusual place; see ``test_manual``."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Dict, List

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.late.parting import sums

Record = Dict[str, Any]
STEPS = 6


def data() -> DataLoader[Any]:
    samples = torch.randn(4 * STEPS, 4, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(samples), batch_size=2)


def net(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def fit(module: Any, loader: Any, **options: Any) -> None:
    """Lightning on the ranks that there are, without what it writes."""
    import lightning
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    options = {"strategy": "ddp", "devices": distributed.get_world_size(), **quiet, **options}
    lightning.Trainer(accelerator="cpu", plugins=[TorchElasticEnvironment()], **options).fit(module, loader)


def adversarial(record: Record, strategy: str = "ddp") -> None:
    """A generator and a discriminator by Lightning's manual optimization, as its documentation has it."""
    import lightning

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
    fit(Adversarial(), data(), strategy=strategy, max_epochs=1)


def adversarial_with_the_flag(record: Record) -> None:
    """The same with the strategy that Lightning's error message names."""
    adversarial(record, "ddp_find_unused_parameters_true")


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
    lowest: Any = sys.modules.get("ddpfix.exchange.lowest_rank")
    if lowest is not None:
        lowest.flush()


def accumulate_nested(record: Record) -> None:
    accumulate(record, nested=True, steps=2)


def accumulate_two(record: Record) -> None:
    accumulate(record, steps=2)


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


def cached_loss_with_the_flag(record: Record) -> None:
    cached_loss(record, find_unused_parameters=True)
