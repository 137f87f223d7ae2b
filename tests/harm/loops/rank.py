"""One rank, forked from a process that imports torch once, with or without ddpfix, for one program after the other."""

from __future__ import annotations

import datetime
import gc
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, Dict

import torch
import torch.distributed.optim
import torch.utils.data.distributed

from tests.harm.loops.kit import Kit
from tests.support import serving

# What a collective waits.
COLLECTIVE = datetime.timedelta(seconds=10)


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run the program in the ways asked for, one after the other in one group; an error ends them."""
    rank, found = serving.RANK, scenario["found"]
    serving.meet(scenario["size"], COLLECTIVE)
    train = runpy.run_path(scenario["file"])["train"]
    # gloo may end the process.
    kept = folder / f"{scenario['name']}.{rank}.kept"
    for mode in scenario["modes"]:
        kit = Kit(mode, scenario["seed"], lambda: kept.write_text(json.dumps(found)))
        found[mode] = kit.record
        kit.run(train)


def main() -> None:
    torch.set_num_threads(1)
    serving.dynamo()
    if os.environ.get("DDPFIX"):
        from tests.support import undo

        # Once for all programs, before the fork: it takes longer than a program.
        serving.preload()
        undo.open_gate()
    # An optimizer imports more at its first step.
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    for kind in (torch.optim.SGD, torch.optim.Adam):
        kind([weight], lr=0.1).step()
    # Pages that the collector does not touch stay shared with the children.
    gc.collect()
    gc.freeze()
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
