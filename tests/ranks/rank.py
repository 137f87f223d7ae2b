"""One rank, forked from a process that imports torch and the tools once, then runs scenarios in forked children."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import serving


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run the worker's scenarios in this (forked) process, which has their environment by now."""
    if scenario["active"]:
        import ddpfix

        ddpfix.activate()
    from torch import distributed

    from tests.ranks import worker

    distributed.init_process_group("gloo")
    for _ in worker.run(scenario["names"], scenario["found"]):
        pass
    if not worker.UNPATCHED:
        distributed.destroy_process_group()


def main() -> None:
    import accelerate
    import transformers

    # Names of transformers are imported on access: before the fork, once for all.
    assert transformers.Trainer and transformers.WavLMModel and transformers.BartForConditionalGeneration
    assert accelerate.Accelerator
    serving.dynamo()
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
