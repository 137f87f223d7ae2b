"""A rank that sleeps, and one that waits for its device meanwhile: ``hang.py LIBRARY HOW``.

Collectives return at once, and whatever reads a value spins below Python until they are done, as on a GPU. How the
value is read: in the script (``item``, ``isnan``), in an installed toolkit (``toolkit``), by a gradient scaler.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.accelerator import stand_in

STEPS, LATE = 6, 3


def item(loss: Any) -> None:
    loss.item()


def isnan(loss: Any) -> None:
    if torch.isnan(loss):
        raise ValueError("the loss is no number")


def toolkit(loss: Any) -> None:
    import_module("small_toolkit").log(loss)


def scaler(loss: Any) -> None:
    made: Any = torch.amp.GradScaler.__new__(torch.amp.GradScaler)
    optimizer = SimpleNamespace(step=lambda *args, **options: None)
    made._maybe_opt_step(optimizer, {"found_inf_per_device": {stand_in.KIND: loss * 0}})


HOW: Dict[str, Callable[[Any], None]] = {"item": item, "isnan": isnan, "toolkit": toolkit, "scaler": scaler}


def main() -> None:
    library, how = sys.argv[1:]
    accelerator = stand_in.Rank(Path(library))
    accelerator.begin()
    distributed.init_process_group(stand_in.BACKEND)
    device = torch.device(stand_in.KIND, 1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator.waits = True
    for step in range(STEPS):
        if step == LATE and distributed.get_rank() == 1:
            time.sleep(float(os.environ["LATE"]))
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8).to(device)).square().mean()
        loss.backward()
        HOW[how](loss)
        optimizer.step()
    # What the device has not done yet would wait at the end.
    os._exit(0)


if __name__ == "__main__":
    main()
