"""One rank that trains a tiny model by transformers' Trainer, and saves after each step.

    python trainer_saves.py FOLDER all|none

``none``: nobody saves. Weights after the last step go to ``FOLDER/end<rank>.pt``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import torch
import transformers

RANK = int(os.environ.get("RANK", "0"))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


class Slow(transformers.Trainer):
    """Rank 1 is late: rank 0 has renamed by then."""

    def _save_rng_state(self, output_dir: Any) -> None:
        time.sleep(RANK)
        super()._save_rng_state(output_dir)


def data() -> List[Dict[str, torch.Tensor]]:
    drawn = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    return [{"x": row} for row in drawn]


def main() -> None:
    folder, who = Path(sys.argv[1]), sys.argv[2]
    args = transformers.TrainingArguments(
        str(folder / "run"),
        max_steps=2,
        per_device_train_batch_size=1,
        save_strategy="steps" if who == "all" else "no",
        save_steps=1,
        learning_rate=0.1,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
        logging_steps=100,
    )
    trainer = Slow(Model(), args, train_dataset=data())
    trainer.train()
    torch.save({name: p.detach() for name, p in trainer.model.named_parameters()}, folder / f"end{RANK}.pt")


if __name__ == "__main__":
    main()
