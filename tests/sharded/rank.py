"""One rank, forked once torch and transformers are imported, which runs scenarios in forked children."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import serving


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    from tests.sharded import training

    if scenario["size"] <= serving.RANK:
        scenario["found"]["left_out"] = True
        return
    os.environ["WORLD_SIZE"] = str(scenario["size"])
    if scenario["settings"] is not None:
        import ddpfix

        ddpfix.activate(**scenario["settings"])
    training.run(scenario)


def main() -> None:
    import torch.distributed.fsdp
    import torch.utils.checkpoint
    import transformers

    from tests.sharded import training
    from tests.support import zoo

    # Names of transformers are imported on access: before the fork, once for all.
    assert transformers.Wav2Vec2Model and torch.distributed.fsdp and training
    assert zoo.tiny_model("wav2vec2").build() is not None

    serving.dynamo()
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
