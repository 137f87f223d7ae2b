"""A short training of a module under Lightning's own launcher: two ranks on the CPU."""

from __future__ import annotations

from typing import Any, Tuple

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn


class Module(lightning.LightningModule):
    """Trains the sum of what a module gives."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).sum()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(inner: nn.Module, shape: Tuple[int, int], steps: int = 3, **of_ddp: Any) -> None:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    strategy = DDPStrategy(process_group_backend="gloo", **of_ddp)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_steps=steps, **quiet)  # type: ignore
    trainer.fit(Module(inner), torch.utils.data.DataLoader(torch.ones(*shape), batch_size=2))
