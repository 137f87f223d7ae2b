"""One rank, forked once torch is imported, which trains each case in a forked child."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import off_main_thread, serving


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one case in this (forked) process."""
    from tests.late import scenarios

    off_main_thread.put_if_asked(bool(scenario.get("threads")))
    if scenario["settings"] is not None:
        import ddpfix

        ddpfix.activate(**scenario["settings"])
    scenarios.run(scenario)


def main() -> None:
    import torch.distributed.optim  # noqa: F401
    import transformers

    # Names of transformers are imported on access: before the fork, once for all.
    assert transformers.Wav2Vec2Model and transformers.BartForConditionalGeneration

    serving.dynamo()
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
