"""One rank, forked from a process that imports torch, transformers and DeepSpeed once, then runs scenarios."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import serving


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    from tests.deepspeed import training

    if scenario["settings"] is not None:
        import ddpfix

        ddpfix.activate(**scenario["settings"])
    training.run(scenario)


def main() -> None:
    import deepspeed
    import torch.utils.checkpoint
    import transformers

    from tests.deepspeed import training
    from tests.support import zoo

    # It would compile a kernel for shared memory when a process group is made, which takes minutes.
    deepspeed.ops.__compatible_ops__ = {}
    assert transformers.BartModel and torch.utils.checkpoint and training
    assert zoo.tiny_model("bart").build() is not None and zoo.tiny_model("wavlm").build() is not None
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
