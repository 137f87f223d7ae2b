"""What a training script of a toolkit does on a rank: what DDP was given, and what came of each optimizer step."""

from __future__ import annotations

import functools
import hashlib
import inspect
import runpy
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List

from tests.support import serving


def digest(parameters: Iterable[Any]) -> str:
    whole = hashlib.sha256()
    for parameter in parameters:
        whole.update(parameter.detach().cpu().numpy().tobytes())
    return whole.hexdigest()[:16]


class Recorder:
    """One run's notes; ``record`` is recorded as JSON."""

    def __init__(self, record: Dict[str, Any]) -> None:
        record.update(ddp=[], batches=[], steps=[], lr=[])
        self.record = record

    def attach(self) -> None:
        """Called after ddpfix, so that what is noted is what torch gets."""
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim.optimizer import register_optimizer_step_post_hook

        original, recorder = DistributedDataParallel.__init__, self

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            recorder.wrapped(self)

        # fastNLP looks at the names that it takes.
        vars(init)["__signature__"] = inspect.signature(original)

        DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.stepped(optimizer))

    def wrapped(self, model: Any) -> None:
        kind = type(model.module).__name__
        self.record["ddp"].append({"module": kind, "find_unused": model.find_unused_parameters})

    def stepped(self, optimizer: Any) -> None:
        self.record["steps"].append(digest(p for group in optimizer.param_groups for p in group["params"]))
        self.record["lr"].append(optimizer.param_groups[0]["lr"])

    def run(self, scenario: Dict[str, Any], arguments: List[str]) -> None:
        """Run a scenario's script in this (forked) process, from the first line to the last."""
        if scenario.get("settings"):
            import ddpfix

            ddpfix.activate(**scenario["settings"])
        self.attach()
        if scenario.get("before"):
            exec(compile(scenario["before"], "before", "exec"), {"recorder": self, "rank": serving.RANK})
        sys.argv = [scenario["script"], *arguments]
        sys.path[0] = str(Path(scenario["script"]).parent)
        runpy.run_path(scenario["script"], run_name="__main__")
