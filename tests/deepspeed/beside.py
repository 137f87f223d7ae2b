"""Runs a toolkit's own training script, whose model DeepSpeed wraps, beside the same training by hand.

``python -m tests.deepspeed.beside FOLDER TOOLKIT SCRIPT ...``, as a rank. What ``deepspeed.initialize`` is given is
copied before: model, optimizer, scheduler. The copy has no DeepSpeed. It is made of the layers that ran, on each batch
that the script has, and its gradients are averaged by hand.
"""

from __future__ import annotations

import copy
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import deepspeed
import torch

from tests.deepspeed import models, training

RANK = int(os.environ["RANK"])


def followed(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    """Both, one after the other; what the second returns."""

    def call(*args: Any) -> Any:
        first(*args)
        return second(*args)

    return call


class Beside:
    """The engine that a script trains, and its copy.

    Args:
        entry: says which layers there are, and leaves some of them out.
        file: of the record, written after each step.
    """

    def __init__(self, entry: Any, file: Path) -> None:
        self.entry, self.file = entry, file
        self.record: Dict[str, Any] = {"ran": [], "apart": []}
        self.called: List[str] = []
        self.batch: Tuple[Any, Any] = ((), {})

    def initialize(self, original: Any, **given: Any) -> Any:
        """In the place of ``deepspeed.initialize``."""
        scripts = given["lr_scheduler"]
        parts = (given["model"], given["optimizer"], scripts)
        self.alone, self.optimizer, self.scheduler = copy.deepcopy(parts)
        # The scheduler has put the step of the script's optimizer on the copy.
        vars(self.optimizer).pop("step", None)
        for name, layer in self.entry.layers(given["model"].encoder):
            self.entry.observed(layer).register_forward_hook(lambda *_, name=name: self.called.append(name))
        engine, *others = original(**given)
        self.engine, self.scripts = engine, scripts
        self.record["layers"] = [name for name, _ in self.entry.layers(given["model"].encoder)]
        engine.register_forward_pre_hook(self.forward, with_kwargs=True)
        engine.backward = followed(self.backward, engine.backward)
        engine.step = followed(engine.step, self.step)
        # What one rank draws by itself is not what the other draws.
        torch.manual_seed(50 + RANK)
        return (engine, *others)

    def forward(self, engine: Any, args: Any, kwargs: Any) -> None:
        self.called.clear()
        self.batch = (args, kwargs)

    def backward(self, loss: Any) -> None:
        """Of the copy, on the same batch."""
        self.record["ran"].append(list(self.called))
        self.scheduler.last_epoch = self.scripts.last_epoch
        self.alone.train(self.engine.module.training)
        args, kwargs = self.batch
        with self.entry.only(self.alone.encoder, self.called):
            output = self.alone(*args, **kwargs)
        (output["loss"] if isinstance(output, dict) else output[0]).backward()

    def step(self) -> None:
        training.average(self.alone)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.record["apart"].append(training.apart(self.engine.module, self.alone, 2))
        self.record["decided"] = training.decided(self.engine)
        self.file.write_text(json.dumps(self.record))


def main() -> None:
    folder, toolkit, script = sys.argv[1:4]
    sys.argv = sys.argv[3:]
    # No kernel that would have to be compiled.
    deepspeed.ops.__compatible_ops__ = {}
    if toolkit == "wenet":
        from tests.wenet import on_cpu

        on_cpu.supply_names()
        on_cpu.supply_audio()
    elif not os.environ.get("DDPFIX"):
        from tests.funasr import stand_in

        stand_in.cuda()
    beside = Beside(models.named(toolkit), Path(folder) / f"{RANK}.json")
    original = deepspeed.initialize
    deepspeed.initialize = lambda **given: beside.initialize(original, **given)
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
