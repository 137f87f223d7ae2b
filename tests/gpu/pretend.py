"""Runs the lines that are for a card on a CPU, with functions of ``torch.cuda`` that do nothing: ``python -m ... ACT``.

It shows that no name is wrong in lines that nobody can run without a card. What they find there means nothing.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any, List
from unittest import mock

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.gpu import card, rank, training, world
from tests.gpu.catalogue import everything
from tests.gpu.cells import Cell

_STUBS = (
    *("_sleep", "synchronize", "reset_peak_memory_stats", "empty_cache", "max_memory_allocated", "memory_allocated"),
    *("Stream", "CUDAGraph", "current_stream", "stream", "graph", "set_sync_debug_mode", "make_graphed_callables"),
)


def pretend() -> None:
    """Have this process take its CPU for a card."""
    # A name that torch.cuda does not have, or one of its streams or graphs, is an error.
    stream, graph = mock.Mock(spec=torch.cuda.Stream), mock.Mock(spec=torch.cuda.CUDAGraph)
    stubs = mock.patch.multiple(torch.cuda, **dict.fromkeys(_STUBS, mock.DEFAULT)).start()
    stubs["Stream"].return_value = stubs["current_stream"].return_value = stream
    stubs["CUDAGraph"].return_value = graph
    stubs["make_graphed_callables"].side_effect = lambda module, sample: module
    mock.patch.object(card, "here", lambda: True).start()
    mock.patch.object(training, "DistributedDataParallel", wrapped).start()
    stock: Any = torch.optim.AdamW
    mock.patch.object(torch.optim, "AdamW", lambda *args, capturable=False, **more: stock(*args, **more)).start()


def wrapped(model: Any, device_ids: Any = None, **more: Any) -> Any:
    """A CPU has no number."""
    return DistributedDataParallel(model, **more)


def cells(act: str) -> List[Cell]:
    # The compiler takes minutes to make code for a CPU.
    cells = everything({**dict.fromkeys(("cuda", "triton", "funasr"))}, True)
    own = [cell for cell in cells if cell.act == act and cell.kind != "reduce-overhead"]
    return [cell for cell in own if cell.group == "gloo2"]


def main(act: str) -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    world._CONTROL.extend(distributed.new_group(backend="gloo") for _ in range(2))
    pretend()
    for cell in cells(act):
        values = {name: getattr(cell, name) for name in ("act", "model", "mode", "kind", "options")}
        found, error = world.together(functools.partial(rank.act, values))
        print(json.dumps({"name": cell.name, "found": found, "error": error}), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
