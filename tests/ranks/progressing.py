"""Jobs of real trainers, which print where their first rank is in each training forward: ``progressing.py JOB``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict

import torch
from torch import distributed, nn

EPOCHS, BATCHES = 2, 4


class Net(nn.Module):
    """Says where the program is."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Any, labels: Any = None) -> Any:
        # Here, since this module is loaded ahead of ddpfix where it is switched on late.
        from ddpfix.patches.torch.pipeline.step_count import Clocks

        from ddpfix import engine
        from ddpfix.patching.site import Kept
        from ddpfix.ranks.hang.position import Tracker

        if self.training and os.environ.get("RANK", "0") == "0":
            # Without ranks nothing is switched on.
            activation = engine.current()
            kept = Kept() if activation is None else activation.kept
            at = Tracker(0, lambda: None, kept.of(Clocks).micro).position()
            print("AT", json.dumps(at._asdict()), flush=True)
        output = self.last(x)
        return {"loss": output.square().mean(), "logits": output}


def data() -> Any:
    return [{"x": torch.randn(4), "labels": torch.zeros(4)} for _ in range(2 * BATCHES)]


def loader() -> Any:
    # Without a sampler that knows its epoch.
    return torch.utils.data.DataLoader(data(), batch_size=2)


def plain() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = list(loader())
    for epoch in range(EPOCHS):
        for step, batch in enumerate(batches):
            net(**batch)["loss"].backward()
            optimizer.step()
            assert (epoch, step) >= (0, 0)


def trainer() -> None:
    from transformers import Trainer, TrainingArguments

    given = {"output_dir": ".", "per_device_train_batch_size": 2, "num_train_epochs": EPOCHS, "report_to": []}
    arguments = TrainingArguments(use_cpu=True, save_strategy="no", disable_tqdm=True, **given)
    Trainer(Net(), arguments, train_dataset=data()).train()


def accelerate() -> None:
    """Two micro-batches a step, under DDP."""
    import ddpfix

    ddpfix.activate()
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    batches = list(loader())
    for epoch in range(EPOCHS):
        for batch_idx, batch in enumerate(batches):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            assert (epoch, batch_idx) >= (0, 0)
    distributed.destroy_process_group()


def lightning() -> None:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any) -> Any:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    pl.Trainer(max_epochs=EPOCHS, accelerator="cpu", devices=1, **quiet).fit(Module(), loader())


# Others accumulate no gradients, for which the ranks are asked.
TWO_RANKS = ("accelerate",)
JOBS: Dict[str, Callable[[], None]] = {
    "plain": plain,
    "trainer": trainer,
    "accelerate": accelerate,
    "lightning": lightning,
}


if __name__ == "__main__":
    JOBS[sys.argv[1]]()
