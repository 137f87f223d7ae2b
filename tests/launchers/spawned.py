"""Two ranks that no torchrun has started: by ``mp.spawn``, or by Lightning's own launcher."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn


class Skipping(nn.Module):
    """Leaves its second layer out, which ddpfix has a line for."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def rank(number: int, store: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    model = nn.parallel.DistributedDataParallel(Skipping())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()


def under_lightning() -> None:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Skipping()

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).sum()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    strategy = DDPStrategy(process_group_backend="gloo")
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_steps=3, **quiet)  # type: ignore
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(12, 2), batch_size=2))


if __name__ == "__main__":
    import ddpfix.auto  # noqa: F401

    if sys.argv[1] == "spawn":
        multiprocessing.spawn(rank, args=(str(Path(sys.argv[2]) / "store"),), nprocs=2)  # type: ignore[no-untyped-call]
    else:
        under_lightning()
