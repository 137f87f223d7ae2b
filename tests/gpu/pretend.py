"""Runs the lines that are for a card on a CPU, with functions of ``torch.cuda`` that do nothing: ``python -m ... ACT``.

It shows that no name is wrong in lines that nobody can run without a card. What they find there means nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, Dict, List

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.gpu import card, rank, training, world
from tests.gpu.catalogue import everything
from tests.gpu.cells import Cell


class Nothing:
    """A stream, or a graph."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass

    def replay(self) -> None:
        pass


def nothing(*_: Any, **__: Any) -> None:
    pass


def context(*_: Any, **__: Any) -> Any:
    return contextlib.nullcontext()


def pretend() -> None:
    """Have this process take its CPU for a card."""
    stubs: Dict[str, Any] = dict.fromkeys(("_sleep", "synchronize", "reset_peak_memory_stats", "empty_cache"), nothing)
    stubs.update(Stream=Nothing, CUDAGraph=Nothing, current_stream=Nothing, stream=context, graph=context)
    stubs.update(set_sync_debug_mode=nothing, max_memory_allocated=lambda *_: 0, memory_allocated=lambda *_: 0)
    stubs.update(make_graphed_callables=lambda module, sample: module)
    for name, function in stubs.items():
        assert hasattr(torch.cuda, name), name
        setattr(torch.cuda, name, function)
    setattr(card, "here", lambda: True)  # noqa: B010
    setattr(training, "DistributedDataParallel", wrapped)  # noqa: B010
    stock: Any = torch.optim.AdamW
    setattr(torch.optim, "AdamW", lambda *args, capturable=False, **more: stock(*args, **more))  # noqa: B010


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
        found, error = world.together(rank._act(values))
        print(json.dumps({"name": cell.name, "found": found, "error": error}), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
