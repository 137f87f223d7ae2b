"""One rank, started by torch elastic: runs cells one after the other and leaves ``<number>.<rank>.json`` for each."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Dict

RANK = int(os.environ.get("RANK", "0"))


def main(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    import torch

    from tests.gpu import world

    if not plan["cuda"]:
        torch.set_num_threads(1)
    world.start(plan["backend"], plan["cuda"])
    for cell in plan["cells"]:
        write = partial(_write, folder, cell["number"])
        left = world.agreed(plan["deadline"] - time.time())
        if left < cell["least"]:
            write(left_out="no time was left")
            continue
        limit = min(cell["limit"], left)
        begun = time.monotonic()
        (folder / f"{cell['number']}.begun").touch()
        # A rank that hangs ends, and torch elastic ends the others; the command goes on with the next cell.
        faulthandler.dump_traceback_later(limit + 10, exit=True)
        try:
            found, error = world.together(partial(act, {**cell, "until": time.time() + limit}), write)
        except world.ApartError as problem:
            write(error=str(problem))
            raise
        faulthandler.cancel_dump_traceback_later()
        write(found=found, error=error, seconds=time.monotonic() - begun)
    world.barrier()
    torch.distributed.destroy_process_group()


def act(cell: Dict[str, Any]) -> Dict[str, Any]:
    from tests.gpu import training

    # Nothing in these is timed.
    training.exactly(cell["act"] in ("exact", "programs", "traced"))
    found: Dict[str, Any] = import_module("tests.gpu." + cell["act"]).run(cell)
    return found


def _write(folder: Path, number: int, **record: Any) -> None:
    """As a whole or not at all."""
    file = folder / f"{number}.{RANK}.json"
    file.with_suffix(".part").write_text(json.dumps(record))
    file.with_suffix(".part").rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
