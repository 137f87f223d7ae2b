"""One rank, forked from a process that imports FunASR once, then runs each scenario in a forked child of its own.

A scenario is one run of FunASR's own entry, as the script that ``finetune.sh`` starts, from the first line to the last.
Importing FunASR takes ten seconds, training a tiny model one: so the import is shared, and nothing else is.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import serving


class Recorder:
    """Notes what DDP was given, every batch, and a digest of all parameters after every optimizer step."""

    def __init__(self, keep: bool, record: Dict[str, Any]) -> None:
        record.update(ddp=[], batches=[], steps=[])
        self.record = record
        self.keep = keep
        self.model: Any = None

    def attach(self) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.optim.optimizer import register_optimizer_step_post_hook

        original = DDP.__init__
        recorder = self

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            recorder.wrapped(self)

        DDP.__init__ = init
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.stepped(optimizer))
        self.torch = torch

    def wrapped(self, model: Any) -> None:
        self.model = model
        frozen = [name for name, p in model.module.named_parameters() if not p.requires_grad]
        self.record["ddp"].append({"find_unused": model.find_unused_parameters, "frozen": frozen})
        model.register_forward_pre_hook(self.forward, with_kwargs=True)

    def forward(self, model: Any, args: Any, kwargs: Dict[str, Any]) -> None:
        speech = kwargs.get("speech")
        shape = list(speech.shape[:2]) if speech is not None else None
        lengths = kwargs["speech_lengths"].flatten().tolist() if speech is not None else None
        self.record["batches"].append({"training": model.training, "shape": shape, "lengths": lengths})

    def stepped(self, optimizer: Any) -> None:
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().cpu().numpy().tobytes())
        self.record["steps"].append(digest.hexdigest()[:16])
        self.record.setdefault("lr", []).append(optimizer.param_groups[0]["lr"])

    def close(self, file: Path) -> None:
        if self.keep and self.model is not None:
            self.torch.save(self.model.module.state_dict(), file)


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    recorder = Recorder(scenario.get("keep", False), scenario["found"])
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if scenario.get("settings"):
        import ddpfix

        ddpfix.activate(**scenario["settings"])
    recorder.attach()
    if scenario.get("before"):
        exec(compile(scenario["before"], "before", "exec"), {"recorder": recorder, "rank": serving.RANK})
    sys.argv = [scenario["script"], *scenario["arguments"]]
    sys.path[0] = str(Path(scenario["script"]).parent)
    try:
        runpy.run_path(scenario["script"], run_name="__main__")
    finally:
        recorder.close(folder / f"{scenario['name']}.{serving.RANK}.pt")


def main() -> None:
    # FunASR's own import comes first, as in its scripts; what replaces torch functions must not be there yet.
    import funasr  # noqa: F401

    serving.dynamo()

    from tests.funasr import stand_in

    if os.environ["TEST_STAND_IN"] == "1":
        stand_in.cuda()
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
