"""One rank, forked from a process that imports FunASR once, then runs each scenario in a forked child of its own.

A scenario is one run of FunASR's own entry, as the script that ``finetune.sh`` starts, from the first line to the last.
Importing FunASR takes ten seconds, training a tiny model one: so the import is shared, and nothing else is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import recorder, serving


class Recorder(recorder.Recorder):
    """Notes every batch, too, and keeps the model."""

    model: Any = None

    def wrapped(self, model: Any) -> None:
        super().wrapped(model)
        self.model = model
        model.register_forward_pre_hook(self.forward, with_kwargs=True)

    def forward(self, model: Any, args: Any, kwargs: Dict[str, Any]) -> None:
        speech = kwargs.get("speech")
        shape = list(speech.shape[:2]) if speech is not None else None
        lengths = kwargs["speech_lengths"].flatten().tolist() if speech is not None else None
        self.record["batches"].append({"training": model.training, "shape": shape, "lengths": lengths})


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    import torch

    notes = Recorder(scenario["found"])
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        notes.run(scenario, scenario["arguments"])
    finally:
        if scenario.get("keep") and notes.model is not None:
            torch.save(notes.model.module.state_dict(), folder / f"{scenario['name']}.{serving.RANK}.pt")


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
