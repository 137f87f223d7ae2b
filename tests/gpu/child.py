"""One process of :mod:`tests.gpu.children`: starts its process group, trains, and prints a line before it ends both."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from typing import Any, Dict

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.gpu import card, programs, training, world
from tests.gpu.cells import BOTH, LATE
from tests.support import recorder

RANK = int(os.environ.get("RANK", "0"))
# Seconds after which ddpfix tells where ranks are that wait, and for which one of them is late.
_HANG, _LATE = 4, 12.0
# Seconds after which it ends by itself: a rank that is killed cannot end its child.
_LIMIT = 60.0


def main(options: Dict[str, Any]) -> int:
    faulthandler.dump_traceback_later(_LIMIT, exit=True)
    if options["mode"] != "plain":
        import ddpfix

        settings: Dict[str, Any] = {"log": "info", "hang": str(_HANG)} if options["kind"] == LATE else {"log": "off"}
        ddpfix.activate(**settings)
    if not options["cuda"]:
        torch.set_num_threads(1)
    try:
        trained(options)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}), flush=True)
        return 1
    return 0


def trained(options: Dict[str, Any]) -> None:
    kind, cuda = options["kind"], options["cuda"]
    # Two ranks over gloo share the one card.
    device = torch.device("cuda", RANK % torch.cuda.device_count()) if cuda else torch.device("cpu")
    world._DEVICE[0] = device
    if cuda and kind not in ("no set_device", BOTH):
        torch.cuda.set_device(device)
    distributed.init_process_group(**how(kind, device))
    try:
        torch.manual_seed(5)
        model, first = built(kind, device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        steps = []
        for number in range(options["steps"]):
            if kind == LATE and number == options["steps"] - 1 and RANK == 1:
                time.sleep(_LATE)
            optimizer.zero_grad(set_to_none=True)
            loss = model(programs.data(number).to(first)).square().mean()
            loss.backward()
            optimizer.step()
            # Over NCCL this is where a rank waits for the others.
            loss.item()
            steps.append(recorder.digest(model.parameters()))
        found = {"steps": steps, "contexts": card.contexts(), **of_group(options, device)}
        # The end of the group is part of the end of the process.
        print(json.dumps({**found, "at": time.monotonic()}), flush=True)
    finally:
        distributed.destroy_process_group()


def how(kind: str, device: torch.device) -> Dict[str, Any]:
    """Return the arguments of ``init_process_group``; on a CPU those of its kind that gloo has."""
    cuda = device.type == "cuda"
    if kind == "device_id" and cuda:
        return {"backend": "nccl", "device_id": device}
    if kind == "cpu:gloo,cuda:nccl":
        return {"backend": kind if cuda else "cpu:gloo"}
    if kind == "backend None":
        return {"backend": None}
    return {"backend": "nccl" if cuda else "gloo"}


def built(kind: str, device: torch.device) -> Any:
    """Return the wrapped model, and the device of what it is given."""
    if kind != BOTH:
        return training.wrapped(programs.stack(6), training.MODES["plain"]), device
    first, second = (torch.device("cuda", 0), torch.device("cuda", 1)) if device.type == "cuda" else (device, device)
    return DistributedDataParallel(programs.Apart(programs.stack(3).to(first), programs.stack(3).to(second))), first


def of_group(options: Dict[str, Any], device: torch.device) -> Dict[str, Any]:
    """Return what ddpfix reads of the group: its limit, and how many collectives it has begun."""
    if options["mode"] == "plain":
        return {"limit": None, "expected": None, "counts": {}}
    from torch.distributed import distributed_c10d as c10d

    from ddpfix.groups import internals, timeouts

    backend = c10d._get_default_group()._get_backend(device)
    expected = backend.options._timeout.total_seconds()
    return {"limit": timeouts.shortest(), "expected": expected, "counts": internals.counts()}


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
