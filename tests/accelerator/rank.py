"""One rank that trains models of several kinds, one after the other, on the stand-in accelerator or on the host.

``rank.py FOLDER LIBRARY KINDS``: the library is "" for the host; kinds are those of :mod:`.models`. A kind of
:data:`HOW` is instead a rank that sleeps, and one that waits for its device meanwhile: collectives return at once, and
what reads a value in that way spins below Python until they are done, as on a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.accelerator import models, stand_in
from tests.support import host_reads

# Steps after which all is as in any later one: the replicas are compared after steps 1, 2, 4 and 8.
STEPS, USUAL = 16, 10


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


HOW: Dict[str, Callable[[Any], None]] = {each.__name__: each for each in (item, isnan, toolkit, scaler)}


def main() -> None:
    folder, library, kinds = sys.argv[1:]
    accelerator = stand_in.Rank(Path(library)) if library else None
    if accelerator is not None:
        accelerator.begin()
        if kinds not in HOW:
            # As MPS, and the collectives of Ascend: neither tensors nor collectives of 64 bits.
            accelerator.extension.set_double(False)
            accelerator.refused.add(torch.float64)
    distributed.init_process_group(stand_in.BACKEND if accelerator is not None else "gloo")
    # The second one: what asks for the current device asks for the wrong one.
    device = torch.device("cpu") if accelerator is None else torch.device(stand_in.KIND, 1)
    if accelerator is not None and kinds in HOW:
        accelerator.waits = True
        _hang(HOW[kinds], device)
    found = {kind: _trained(kind, device, accelerator) for kind in kinds.split(";")}
    if accelerator is not None:
        found["calls"] = [[*key, times] for key, times in accelerator.calls.items()]
    (Path(folder) / f"found.{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()


def _hang(read: Callable[[Any], None], device: Any) -> None:
    model = DistributedDataParallel(models.MODELS["plain"]().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        if step == 3 and distributed.get_rank() == 1:
            time.sleep(float(os.environ["LATE"]))
        optimizer.zero_grad()
        loss = model(models.inputs("plain").to(device)).square().mean()
        loss.backward()
        read(loss)
        optimizer.step()
    # What the device has not done yet would wait at the end.
    os._exit(0)


def _trained(kind: str, device: Any, accelerator: Optional[stand_in.Rank]) -> Any:
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(models.MODELS[kind]().to(device), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(100 + rank)
    usual: host_reads.Reads = host_reads.Reads()
    for step in range(STEPS):
        x = models.inputs(kind).to(device)
        if accelerator is not None:
            accelerator.reads, accelerator.counts = host_reads.Reads(), True
        optimizer.zero_grad()
        models.loss(model(x)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if accelerator is not None:
            accelerator.counts = False
            usual += accelerator.reads if step >= USUAL else host_reads.Reads()
    weights = [each.detach().cpu().double().flatten() for each in model.parameters()]
    reads: List[Any] = [[*key, times] for key, times in host_reads.of_ddpfix(usual).items()]
    record: Dict[str, Any] = {"weights": torch.cat(weights).tolist(), "reads": reads}
    return record


if __name__ == "__main__":
    main()
