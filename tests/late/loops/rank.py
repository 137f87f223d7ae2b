"""One rank, forked from a process that imports torch once, then runs each program in a forked child."""

from __future__ import annotations

import datetime
import gc
import os
import sys
from pathlib import Path
from typing import Any, Dict

from tests.support import off_main_thread, serving, undo


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one program in this (forked) process."""
    import torch

    from tests.late.loops import kinds
    from tests.late.loops.loop import Loop

    record, declared = scenario["found"], kinds.load()[scenario["kind"]]
    record["unavailable"] = kinds.missing(declared.needs)
    if record["unavailable"]:
        return
    torch.set_num_threads(1)
    off_main_thread.put_if_asked(bool(scenario.get("threads")))
    serving.meet(scenario["size"], datetime.timedelta(seconds=declared.wait))
    counted = declared.plain == "right" and declared.counted and scenario["size"] == 2 and scenario["mode"] != "hand"
    loop = Loop(scenario["mode"], record, counted)
    if not declared.activated:
        loop.deactivate()
    torch.manual_seed(3)
    loop.run(declared.train)


def main() -> None:
    import torch.distributed.optim  # noqa: F401

    from tests.late.loops import kinds
    from tests.late.loops.loop import OURS

    serving.dynamo()
    kinds.load()
    if os.environ.get("LOOPS_MODE"):
        import ddpfix

        # Once for all programs, before the fork: an activation takes longer than a program.
        ddpfix.activate(**OURS[os.environ["LOOPS_MODE"]])
        undo.open_gate()
    # Pages that the collector does not touch stay shared with the children.
    gc.collect()
    gc.freeze()
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
