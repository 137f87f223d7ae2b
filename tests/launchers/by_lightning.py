"""The training of the program, under Lightning's Trainer: ranks that it starts itself, or that SLURM has started."""

from __future__ import annotations

from typing import Any, Dict, List

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

from tests.ranks import worker
from tests.support import zoo


class Module(lightning.LightningModule):
    """A tiny Bart; each gradient is compared with that of :func:`tests.ranks.worker.mean_of_local`."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = zoo.tiny_model("bart")
        self.inner = worker.with_dropout(self.entry.build(rate=0.5, seed=3))
        self.watch = [worker.Watch(self.inner)]
        self.now: List[Any] = []
        self.record: Dict[str, Any] = {"skipped": [], "errors": [], "equal": []}

    def training_step(self, sample: Any, index: int) -> Any:
        torch.rand(1 + 3 * worker.rank())
        inputs, generator = worker.batch(self.entry, index), torch.get_rng_state()
        self.watch[0].skipped()
        worker.decided()
        loss = self.entry.last_loss(self.inner(**inputs))
        self.record["skipped"].append(self.watch[0].skipped())
        self.now = [inputs, generator, worker.decided()]
        return loss

    def on_after_backward(self) -> None:
        if not worker.UNPATCHED:
            expected = worker.mean_of_local(self.entry, self.inner, *self.now)
            self.record["errors"].append(worker.compare(self.inner, expected))

    def on_train_batch_end(self, *unused: Any) -> None:
        self.record["equal"].append(worker.same_everywhere(worker.flat(self.inner)))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(steps: int, hosts: int) -> Dict[str, Any]:
    """Two ranks: on one host, or one on each of two."""
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2 // hosts,
        num_nodes=hosts,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(100, 1), batch_size=2))
    return module.record
