"""One rank of a job that is interrupted: it saves a checkpoint on its way, or goes on from one.

``TEST_PART`` says what it does, as JSON: (kind, folder, begin, end). A plain loop or transformers' Trainer trains from
step ``begin`` to step ``end``. From a step above 0 it restores the checkpoint of that step, random states included.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.ranks import worker
from tests.support import zoo

# The step in which a checkpoint is saved.
SAVED = 4


def states() -> Dict[str, Any]:
    return {"torch": torch.get_rng_state(), "numpy": numpy.random.get_state(), "python": random.getstate()}


def restore(saved: Dict[str, Any]) -> None:
    torch.set_rng_state(saved["torch"])
    numpy.random.set_state(saved["numpy"])
    random.setstate(saved["python"])


def digest(model: nn.Module) -> List[float]:
    """Of each parameter the sum of its bits, read as integers."""
    return [int(p.detach().view(torch.int32).to(torch.int64).sum()) for p in model.parameters()]


def numbers(state: torch.Tensor) -> int:
    """A number for all bytes of a state."""
    return int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:8], "big")


def loop(folder: Path, begin: int, end: int) -> Any:
    """The loop of a user who saves everything: weights, optimizer, random states of each rank."""
    entry = zoo.tiny_model("wavlm")
    # Ranks draw different numbers, and a job that restores no states gets others than the first one.
    torch.manual_seed(100 + worker.rank() + int(os.environ.get("TEST_SEED", "0")))
    model = worker.with_dropout(entry.build(seed=3))
    watch = worker.Watch(model)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    file = folder / f"checkpoint{worker.rank()}.pt"
    if begin:
        saved = torch.load(file, **({"weights_only": False} if "weights_only" in torch.load.__kwdefaults__ else {}))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if str(worker.rank()) not in os.environ.get("TEST_FORGETS", "").split(","):
            restore(saved["states"])
    skipped = []
    for step in range(begin, end):
        if step == SAVED and not begin:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "states": states()}
            torch.save(saved, file)
        torch.rand(1 + 3 * worker.rank())
        optimizer.zero_grad()
        watch.skipped()
        entry.last_loss(wrapped(**worker.batch(entry, step))).backward()
        skipped.append(watch.skipped())
        optimizer.step()
        wrapped.eval()
        with torch.no_grad():
            # Evaluation on one rank alone.
            wrapped.module(**worker.batch(entry, step)) if worker.rank() else None
        wrapped.train()
    return {"skipped": skipped, "digest": digest(model), "drawn": numbers(states()["torch"])}


def trainer(folder: Path, begin: int, end: int) -> Any:
    import transformers
    from transformers import Trainer, TrainingArguments

    config = zoo.tiny_model("wavlm").make_config(0.5)
    config.num_labels = 2
    torch.manual_seed(0)
    model = worker.with_dropout(transformers.WavLMForSequenceClassification(config))
    watch = worker.Watch(model)
    skipped: List[Any] = []
    arguments = TrainingArguments(
        str(folder / "trainer"),
        per_device_train_batch_size=2,
        max_steps=8,
        report_to=[],
        save_strategy="steps",
        save_steps=SAVED,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=True,
        **{worker.CPU: True},
    )

    class Noting(Trainer):  # type: ignore[misc]
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            # Trainer seeds all ranks alike; real runs drift apart (another length, another augmentation).
            torch.rand(1 + 3 * worker.rank())
            watch.skipped()
            result = super().training_step(*args, **kwargs)
            skipped.append(watch.skipped())
            return result

    made = Noting(model=model, args=arguments, train_dataset=worker._Sounds())
    made.train(resume_from_checkpoint=str(folder / "trainer" / f"checkpoint-{begin}") if begin else None)
    return {"skipped": skipped, "digest": digest(model), "drawn": numbers(torch.get_rng_state())}


KINDS: Dict[str, Callable[[Path, int, int], Any]] = {"loop": loop, "trainer": trainer}


def part() -> Dict[str, Any]:
    kind, folder, begin, end = json.loads(os.environ["TEST_PART"])
    return KINDS[kind](Path(folder), begin, end)  # type: ignore[no-any-return]
