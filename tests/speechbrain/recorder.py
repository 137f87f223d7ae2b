"""Notes what happens in a run: what DDP was given, every batch, which layers ran, and every optimizer step."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Dict, List

import torch


class Recorder:
    """One run's notes; ``record`` is recorded as JSON, the first ``keep`` optimizer steps as tensors."""

    def __init__(self, keep: int, record: Dict[str, Any]) -> None:
        record.update(ddp=[], batches=[], ran=[], steps=[], lr=[])
        self.record = record
        self.keep = keep
        self.kept: List[Dict[str, Any]] = []
        self.brain: Any = None
        self.window: List[List[str]] = []
        self.layers: List[List[str]] = []
        self.before: Dict[str, torch.Tensor] = {}

    def attach(self) -> None:
        """Called after ddpfix, so that what is noted is what torch gets."""
        from speechbrain.core import Brain
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        original_init, original_batch, recorder = DistributedDataParallel.__init__, Brain.fit_batch, self

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original_init(self, *args, **kwargs)
            recorder.wrapped(self)

        def fit_batch(self: Any, batch: Any) -> Any:
            recorder.begun(self, batch)
            return original_batch(self, batch)

        DistributedDataParallel.__init__, Brain.fit_batch = init, fit_batch
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self.stepping())
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.stepped(optimizer))

    def wrapped(self, model: Any) -> None:
        frozen = [name for name, p in model.module.named_parameters() if not p.requires_grad]
        kind = type(model.module).__name__
        self.record["ddp"].append({"module": kind, "find_unused": model.find_unused_parameters, "frozen": frozen})
        parts = model.module.named_modules()
        skipping = [(name, module) for name, module in parts if f".{name}".rpartition(".")[0].endswith(".layers")]
        if skipping:
            model.register_forward_pre_hook(lambda module, args: self.layers.append([]) if module.training else None)
        for name, module in skipping:
            module.register_forward_hook(lambda module, args, output, name=name: self.layer(module, name))

    def layer(self, module: Any, name: str) -> None:
        # Activation checkpointing runs a layer again in the backward pass.
        if module.training and self.layers and name not in self.layers[-1]:
            self.layers[-1].append(name)

    def begun(self, brain: Any, batch: Any) -> None:
        self.brain = brain
        self.window.append(list(batch.id))
        self.record["batches"].append(list(batch.id))
        if self.keep > len(self.kept) and len(self.window) == 1:
            self.before = {name: p.detach().clone() for name, p in self.parameters()}

    def parameters(self) -> List[Any]:
        """(name without DDP's own part, parameter) of all modules of the Brain."""
        return [(name.replace(".module.", "."), p) for name, p in self.brain.modules.named_parameters()]

    def stepping(self) -> None:
        if self.keep > len(self.kept):
            grads = {name: None if p.grad is None else p.grad.clone() for name, p in self.parameters()}
            ran = self.layers[-len(self.window) :]
            self.kept.append({"before": self.before, "grads": grads, "batches": self.window, "ran": ran})
        self.window = []

    def stepped(self, optimizer: Any) -> None:
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().cpu().numpy().tobytes())
        self.record["steps"].append(digest.hexdigest()[:16])
        self.record["lr"].append(optimizer.param_groups[0]["lr"])

    def close(self, file: Path) -> None:
        self.record["ran"] = self.layers
        if self.kept:
            torch.save(self.kept, file)
