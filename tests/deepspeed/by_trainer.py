"""DeepSpeed from transformers' Trainer, and what it has trained, by hand."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Dict, List

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.deepspeed import models, training


class Batches(Dataset[Dict[str, Any]]):
    """Items of which each is a batch of its own."""

    def __init__(self, entry: Any, count: int) -> None:
        self.entry, self.count = entry, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Dict[str, Any]:
        return {"number": index, **self.entry.batch(index)}


def run(scenario: Dict[str, Any]) -> None:
    """Train, then train again by hand on the batches that came, with the layers that ran."""
    entry, found = models.named(scenario["model"]), scenario["found"]
    alone, model = entry.reference(scenario["rate"]), entry.build(scenario["rate"])
    ran: List[List[str]] = []
    seen: List[Dict[str, Any]] = []
    for name, layer in entry.layers(model):
        entry.observed(layer).register_forward_hook(lambda *_, name=name: ran[-1].append(name))

    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            ran.append([])
            # All of a batch are one item, whose first dimension is the collator's.
            batch = {name: value[0] for name, value in inputs.items() if name != "number"}
            seen.append(batch)
            return entry.loss(model(**batch))

    trainer = Own(model, arguments(scenario), train_dataset=Batches(entry, 2 * scenario["steps"]))
    # The program's own numbers differ by rank.
    trainer.add_callback(_Unequal())
    trainer.train()
    # The Trainer makes its own under DeepSpeed, whatever it is given.
    optimizer = torch.optim.AdamW(alone.parameters(), lr=0.01, eps=1e-3, weight_decay=0.0)
    for batch, layers in zip(seen, ran):
        optimizer.zero_grad()
        with entry.only(alone, layers):
            entry.loss(alone(**batch)).backward()
        training.average(alone)
        optimizer.step()
    engine = trainer.model_wrapped
    found.update(ran=ran, loss=[], expected=[], layers=[name for name, _ in entry.layers(model)])
    found.update(apart=[training.apart(engine.module, alone, scenario["stage"])], decided=training.decided(engine))


def arguments(scenario: Dict[str, Any]) -> TrainingArguments:
    """No clipping, and a learning rate that stays: the reference is a plain loop."""
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        # Not DeepSpeed's own 1.0.
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": scenario["stage"], "stage3_param_persistence_threshold": 0},
    }
    return TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        deepspeed=settings,
        max_steps=scenario["steps"],
        per_device_train_batch_size=1,
        max_grad_norm=0.0,
        optim="adamw_torch",
        learning_rate=0.01,
        adam_epsilon=1e-3,
        lr_scheduler_type="constant",
        remove_unused_columns=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


class _Unequal(TrainerCallback):
    """Draws another count of numbers on each rank in front of each step."""

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        torch.rand(1 + 3 * int(os.environ["RANK"]))
