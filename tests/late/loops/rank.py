"""One rank, forked from a process that imports torch once, then runs each program in a forked child."""

from __future__ import annotations

import datetime
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict

from tests.support import off_main_thread, serving, undo


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one program in this (forked) process; of a program for fewer ranks the last ones are left out."""
    from torch import set_num_threads

    from tests.late.loops import kinds

    record, declared = scenario["found"], kinds.load()[scenario["kind"]]
    record["unavailable"] = kinds.missing(declared.needs)
    if record["unavailable"] or scenario["size"] <= serving.RANK:
        record["left_out"] = True
        return
    os.environ["WORLD_SIZE"] = str(scenario["size"])
    set_num_threads(1)
    off_main_thread.put_if_asked(bool(scenario.get("threads")))
    serving.meet(scenario["size"], datetime.timedelta(seconds=declared.wait))
    train(scenario, declared)
    wait_for_others(scenario, folder)


def train(scenario: Dict[str, Any], declared: Any) -> None:
    import torch

    from tests.late.loops.loop import Loop

    counted = declared.plain == "right" and declared.counted and scenario["size"] == 2 and scenario["mode"] != "hand"
    loop = Loop(scenario["mode"], scenario["found"], counted)
    if not declared.activated:
        loop.deactivate()
    torch.manual_seed(3)
    loop.run(declared.train)


def wait_for_others(scenario: Dict[str, Any], folder: Path) -> None:
    """A rank that ends early would break connections that other ranks still use."""
    name, end = scenario["name"], time.monotonic() + 1.5
    (folder / f"{name}.{serving.RANK}.ended").touch()
    while time.monotonic() < end:
        # A rank that fails leaves its record at once.
        files = [[folder / f"{name}.{rank}.{word}" for word in ("ended", "json")] for rank in range(scenario["size"])]
        if all(any(file.exists() for file in of_rank) for of_rank in files):
            return
        time.sleep(0.01)


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
