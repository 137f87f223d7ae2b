"""Loops of accelerate and Lightning with backwards, or steps, in an unusual place; see ``test_manual``."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Dict, List

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

Record = Dict[str, Any]
STEPS = 6


def sums(model: Any) -> List[float]:
    return [float(each.detach().double().sum()) for each in model.parameters()]


def data() -> DataLoader[Any]:
    samples = torch.randn(4 * STEPS, 4, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(samples), batch_size=2)


def net(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def adversarial(record: Record, strategy: str = "ddp") -> None:
    """A generator and a discriminator by Lightning's manual optimization, as its documentation has it."""
    import lightning
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

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
    options: Dict[str, Any] = {"accelerator": "cpu", "devices": distributed.get_world_size(), "max_epochs": 1}
    options.update(plugins=[TorchElasticEnvironment()], logger=False, enable_checkpointing=False)
    options.update(enable_progress_bar=False, enable_model_summary=False, strategy=strategy)
    lightning.Trainer(**options).fit(Adversarial(), data())


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
    lowest: Any = sys.modules.get("ddpfix.ranks.store.lowest")
    if lowest is not None:
        lowest.flush()


def accumulate_nested(record: Record) -> None:
    accumulate(record, nested=True, steps=2)


def accumulate_two(record: Record) -> None:
    accumulate(record, steps=2)
