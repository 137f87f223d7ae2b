"""One rank, which imports SpeechBrain once, then runs each scenario in a forked child."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, List

from packaging.version import Version

from tests.support import recorder, serving


class Recorder(recorder.Recorder):
    """Notes every batch, and which layers ran, too."""

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


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    arguments = [word.replace("=RANK", f"={os.environ['RANK']}") for word in scenario["arguments"]]
    Recorder(scenario["found"]).run(scenario, arguments)


def main() -> None:
    # This toolkit looks at the rank when it is imported.
    serving.fork_ranks(Path(sys.argv[1]))
    import speechbrain  # noqa: F401

    serving.dynamo()

    from tests.speechbrain import recipes

    if recipes.release() < Version("0.5.14"):
        # It cannot use gloo on the CPU: it counts GPUs whatever the backend, and hands the device to DDP as a GPU.
        sys.modules["torch"].cuda.device_count = lambda: 8
        serving.without_devices()
    import_module(recipes.wrapper(recipes.family()).rpartition(".")[0])
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
