"""Short trainings by Lightning on the CPU, without what it writes, on ranks that it starts or that are there."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import lightning
import torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed, nn


class Module(lightning.LightningModule):
    """Trains the sum of what a module gives."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).sum()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def batches(*shape: int) -> Any:
    """Two rows each."""
    return torch.utils.data.DataLoader(torch.ones(*shape), batch_size=2)


def fit(inner: nn.Module, shape: Tuple[int, int], steps: int = 3, **of_ddp: Any) -> None:
    """Train on two ranks that Lightning starts."""
    strategy = DDPStrategy(process_group_backend="gloo", **of_ddp)
    _train(Module(inner), batches(*shape), devices=2, strategy=strategy, max_steps=steps)


def fit_here(module: Any, loader: Any, **options: Any) -> None:
    """Train on the ranks of the process group."""
    here: Dict[str, Any] = {"strategy": "ddp", "devices": distributed.get_world_size()}
    _train(module, loader, plugins=[TorchElasticEnvironment()], **{**here, **options})


def _train(module: Any, loader: Any, **options: Any) -> None:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    lightning.Trainer(accelerator="cpu", **quiet, **options).fit(module, loader)  # type: ignore[arg-type]
