"""A rank of a job that leaves a parameter out in each step: the program of ``test_untested``."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def under_lightning() -> None:
    """Lightning, which builds DDP with what its strategy was given."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    from tests.skipping.shapes import Item

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Item()

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x).sum()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    strategy = DDPStrategy(process_group_backend="gloo", find_unused_parameters=False)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_steps=3, **quiet)  # type: ignore
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2))


def main(mode: str) -> None:
    if mode == "changed":
        # As if this release had rewritten it.
        original: Any = DistributedDataParallel.__init__

        def rewritten(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(self, module, *args, **kwargs)

        DistributedDataParallel.__init__ = rewritten  # type: ignore[method-assign, assignment]
    import ddpfix.auto  # noqa: F401

    if mode == "lightning":
        under_lightning()
        return
    if mode == "transformers":
        import transformers  # noqa: F401
    distributed.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        model(torch.full((2, 2), float(distributed.get_rank() + step))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if distributed.get_rank() == 0:
        print("trained", model.module.used.weight.tolist(), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
