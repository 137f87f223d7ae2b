"""One rank that trains models of several kinds, one after the other, on the stand-in accelerator or on the host.

``rank.py FOLDER LIBRARY KINDS [THREAD]``: the library is "" for the host; kinds are those of :mod:`.models`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.accelerator import models, stand_in
from tests.support import host_reads, off_main_thread

# Steps after which all is as in any later one: the replicas are compared after steps 1, 2, 4 and 8.
STEPS, USUAL = 16, 10


def main() -> None:
    folder, library, kinds, *more = sys.argv[1:]
    accelerator = stand_in.Rank(Path(library)) if library else None
    if accelerator is not None:
        accelerator.begin()
        accelerator.refuse_float64()
    if "thread" in more:
        off_main_thread.put()
    distributed.init_process_group(stand_in.BACKEND if accelerator is not None else "gloo")
    # The second one: what asks for the current device asks for the wrong one.
    device = torch.device("cpu") if accelerator is None else torch.device(stand_in.KIND, 1)
    found = {kind: _trained(kind, device, accelerator) for kind in kinds.split(";")}
    if accelerator is not None:
        found["calls"] = [[*key, times] for key, times in accelerator.calls.items()]
    (Path(folder) / f"found.{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()


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
