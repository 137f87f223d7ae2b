"""One rank, started by torch elastic: imports torch once, then trains each case in a forked child.

Cases for fewer ranks than there are leave the last ones out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import serving


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one case in this (forked) process."""
    from tests.late import training

    if scenario["size"] <= serving.RANK:
        scenario["found"]["left_out"] = True
        return
    os.environ["WORLD_SIZE"] = str(scenario["size"])
    if scenario["settings"] is not None:
        import ddpfix

        ddpfix.activate(**scenario["settings"])
    training.run(scenario)


def main() -> None:
    import torch._dynamo
    import torch.distributed.optim  # noqa: F401
    import torch.utils.checkpoint  # noqa: F401

    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
