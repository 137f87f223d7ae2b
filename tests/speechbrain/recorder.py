"""Notes what happens in a run: what DDP was given, every batch, which layers ran, and every optimizer step."""

from __future__ import annotations

from typing import Any, Dict, List

from tests.support import recorder


class Recorder(recorder.Recorder):
    def __init__(self, record: Dict[str, Any]) -> None:
        super().__init__(record)
        self.layers: List[List[str]] = record.setdefault("ran", [])

    def attach(self) -> None:
        from speechbrain.core import Brain

        super().attach()
        original = Brain.fit_batch

        def fit_batch(brain: Any, batch: Any) -> Any:
            self.record["batches"].append(list(batch.id))
            return original(brain, batch)

        Brain.fit_batch = fit_batch

    def wrapped(self, model: Any) -> None:
        super().wrapped(model)
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
