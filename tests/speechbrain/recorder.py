"""Notes what happens in a run: what DDP was given, every batch, which layers ran, and every optimizer step."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List


class Recorder:
    """One run's notes; ``record`` is recorded as JSON."""

    def __init__(self, record: Dict[str, Any]) -> None:
        record.update(ddp=[], batches=[], ran=[], steps=[], lr=[])
        self.record = record
        self.layers: List[List[str]] = record["ran"]

    def attach(self) -> None:
        """Called after ddpfix, so that what is noted is what torch gets."""
        from speechbrain.core import Brain
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim.optimizer import register_optimizer_step_post_hook

        original_init, original_batch, recorder = DistributedDataParallel.__init__, Brain.fit_batch, self

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original_init(self, *args, **kwargs)
            recorder.wrapped(self)

        def fit_batch(self: Any, batch: Any) -> Any:
            recorder.record["batches"].append(list(batch.id))
            return original_batch(self, batch)

        DistributedDataParallel.__init__, Brain.fit_batch = init, fit_batch
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

    def stepped(self, optimizer: Any) -> None:
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().cpu().numpy().tobytes())
        self.record["steps"].append(digest.hexdigest()[:16])
        self.record["lr"].append(optimizer.param_groups[0]["lr"])
