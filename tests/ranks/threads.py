"""Programs of public threads, as small as they become: argv[1] is a function below, by its project and number."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import Any, Iterator

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

STEPS = 6
# Whether what the line advises is done.
CURED = sys.argv[-1] == "cured"


class Training:
    """A tiny one, with data of each rank's own."""

    def __init__(self, module: Any = None, **ddp: Any) -> None:
        distributed.init_process_group("gloo")
        torch.manual_seed(0)
        self.rank = distributed.get_rank()
        self.model = DistributedDataParallel(
            module or nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), **ddp
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.random = torch.Generator().manual_seed(self.rank)

    def loss(self) -> Any:
        return self.model(torch.randn(8, 4, generator=self.random)).square().mean()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


def sparsify_5() -> None:
    """``save()`` returns early on all ranks but the first, which comes to the barrier at its end."""
    training = Training()

    def save() -> None:
        if training.rank != 0 and not CURED:
            return
        distributed.barrier()

    for step in range(STEPS):
        training.step()
        if step == 2:
            save()
    distributed.barrier()


def kempner_50() -> None:
    """Each rank looks for a file by itself, which one of them does not see."""
    training = Training()
    training.step()
    file = tempfile.mkdtemp() if training.rank else "/nowhere/state.pt"

    def load() -> None:
        if os.path.exists(file):
            distributed.broadcast_object_list([{}], 0)

    load()
    distributed.all_reduce(torch.ones(3))
    distributed.barrier()


def automodel_2468() -> None:
    """One rank leaves a batch out, and all destroy their process group at the end."""
    training = Training()
    for step in range(STEPS):
        loss = training.loss()
        leaves_out = torch.tensor(float(training.rank == 1 and step == 2))
        if CURED:
            distributed.all_reduce(leaves_out)
        if leaves_out:
            continue
        loss.backward()
    distributed.destroy_process_group()


def accelerate_1708() -> None:
    """One ``accumulate`` within another: the outer model never counts to a step that is averaged."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    one, other = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.AdamW([*one.parameters(), *other.parameters()], lr=0.01)
    one, other, optimizer = accelerator.prepare(one, other, optimizer)
    random = torch.Generator().manual_seed(accelerator.process_index)
    for _ in range(4 * STEPS):
        with contextlib.ExitStack() as opened:
            for models in [(one, other)] if CURED else [(one,), (other,)]:
                opened.enter_context(accelerator.accumulate(*models))
            accelerator.backward(other(one(torch.randn(8, 4, generator=random))).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    distributed.destroy_process_group()


class Inside(nn.Module):
    """Calls backward in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs: Any) -> Any:
        loss = self.layer(inputs).square().mean()
        if not CURED:
            loss.backward()
        return loss


def backward_inside() -> None:
    """A static graph whose backward runs in the forward; cured, after it."""
    training = Training(Inside(), static_graph=True)
    for _ in range(STEPS):
        training.optimizer.zero_grad()
        loss = training.model(torch.randn(8, 4, generator=training.random))
        if CURED:
            loss.backward()
        training.optimizer.step()
    distributed.barrier()
    distributed.destroy_process_group()


def flag_set_after() -> None:
    """Accumulation by DDP's attribute, set after the forward; cured, before it."""
    training = Training()
    for _ in range(STEPS):
        training.optimizer.zero_grad()
        for micro in range(2):
            if CURED:
                training.model.require_backward_grad_sync = micro == 1
            loss = training.loss()
            if not CURED:
                training.model.require_backward_grad_sync = micro == 1
            loss.backward()
        training.optimizer.step()
    distributed.destroy_process_group()


def lvsm_22() -> None:
    """``no_sync`` around backward alone, which the forward does not see: each backward is averaged."""
    training = Training()
    for _ in range(STEPS):
        training.optimizer.zero_grad()
        for micro in range(2):
            loss = training.loss()
            with contextlib.nullcontext() if micro else training.model.no_sync():
                loss.backward()
        training.optimizer.step()
    distributed.destroy_process_group()


class Everything(IterableDataset):
    """Gives the same samples to each rank (CosyVoice, ``partition=False``)."""

    def __iter__(self) -> Iterator[Any]:
        yield from torch.arange(32.0).reshape(8, 4)


def cosyvoice() -> None:
    training = Training()
    for _ in range(2):
        for batch in DataLoader(Everything(), batch_size=2):
            training.optimizer.zero_grad()
            training.model(batch).square().mean().backward()
            training.optimizer.step()
    distributed.destroy_process_group()


class Uneven(IterableDataset):
    """The first rank has less."""

    def __iter__(self) -> Iterator[Any]:
        yield from torch.ones(8 if distributed.get_rank() == 0 else 12, 4)


def fitted(data: Any, skips: bool = False) -> Any:
    """Train by Lightning; return its trainer."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            if skips and self.global_rank == 1 and number == 2:
                return None
            return self.layer(batch[0] if isinstance(batch, list) else batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet: Any = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet)
    trainer.fit(Module(), DataLoader(data, batch_size=2))
    return trainer


def autocast_386() -> None:
    """The first rank alone saves by Lightning, which ends in a barrier."""
    trainer = fitted(TensorDataset(torch.ones(16, 4)))
    if trainer.is_global_zero or CURED:
        trainer.save_checkpoint(os.path.join(tempfile.mkdtemp(), "last.ckpt"))
    distributed.barrier()
    distributed.all_reduce(torch.ones(1))


def lightning_20404() -> None:
    fitted(Uneven())
    distributed.barrier()


def lightning_5243() -> None:
    """``training_step`` returns None on one rank."""
    fitted(TensorDataset(torch.ones(16, 4)), skips=True)
    distributed.barrier()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("ended", flush=True)
