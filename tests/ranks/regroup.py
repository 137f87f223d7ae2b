"""One process that joins several process groups one after the other, as its plan says; prints what its groups gave it.

It may become a new process between two groups: a job may replace one process and keep the others.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from typing import Any, Dict, List

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ddpfix.exchange import rendezvous

MODELS = 3


def main(plan: Dict[str, Any]) -> None:
    while plan["groups"]:
        stage = plan["groups"].pop(0)
        plan["found"].append(in_group(stage))
        if stage.get("replaced"):
            sys.stdout.flush()
            os.execv(sys.executable, [sys.executable, __file__, json.dumps(plan)])
    print(json.dumps(plan["found"]))


def in_group(stage: Dict[str, Any]) -> List[int]:
    """The shared seeds that three models of this group were wrapped with; empty where this rank is not a member."""
    timeout = datetime.timedelta(seconds=120)
    rank, size = stage["rank"], stage["size"]
    server = None
    if stage.get("server"):
        server = distributed.TCPStore("127.0.0.1", stage["port"], None, False, timeout)
        distributed.init_process_group("gloo", store=server, rank=rank, world_size=size, timeout=timeout)
    else:
        where = f"tcp://127.0.0.1:{stage['port']}"
        distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=size, timeout=timeout)
    members = stage.get("members") or list(range(size))
    group = distributed.new_group(members)
    # ddpfix is activated in this group a second time; a rank counts once all the same.
    rendezvous.announce()
    seeds = (
        [wrapped(rank, members, group, stage["seed"] + number) for number in range(MODELS)] if rank in members else []
    )
    distributed.barrier()
    distributed.destroy_process_group()
    if server is not None:
        forget_torchs_keys(server, rank, size, stage["seed"])
    return seeds


def wrapped(rank: int, members: List[int], group: Any, seed: int) -> int:
    """Train a model for a step, and have ranks agree on a seed as its wrapping does."""
    model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
    model(torch.ones(1, 2) * rank).sum().backward()
    own = rendezvous.Members("of this test", members, rank)
    agreed = rendezvous.meet(own, {"seed": str(seed)}, seed + 1000 * rank, 60.0)
    assert agreed is not None
    return agreed


def forget_torchs_keys(server: Any, rank: int, size: int, number: int) -> None:
    """torch reads keys of its own that a former group left on the same server, and then waits for that one's ranks."""
    met(server, f"test/over/{number}", size)
    if rank == 0:
        for key in server.list_keys():
            if "ddpfix" not in key and not key.startswith("test/"):
                server.delete_key(key)
    met(server, f"test/clean/{number}", size)


def met(server: Any, key: str, size: int) -> None:
    if server.add(key, 1) == size:
        server.set(key + "/all", "")
    server.wait([key + "/all"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
