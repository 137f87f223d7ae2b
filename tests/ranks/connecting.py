"""A rank whose default group is taken for one that gloo has not connected: what it gets as a group for small things.

``python connecting.py yes`` has gloo connect; ``no`` gives rank 1 an interface that it has not; with ``late`` it comes
when gloo would have given it up.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

from torch import distributed

import ddpfix.auto  # noqa: F401
from ddpfix.groups import internals
from ddpfix.uneven import async_sum

if __name__ == "__main__":
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    internals.has_gloo = lambda group: False
    async_sum._CONNECT = 4.0
    if sys.argv[1] == "no" and rank:
        os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
    if sys.argv[1] == "late" and rank:
        time.sleep(12)
    begun = time.monotonic()
    group = async_sum.cpu_group(timedelta(hours=24))
    again = async_sum.cpu_group(timedelta(hours=24))
    sums = None if group is None else async_sum.PendingSum([rank, 1], group).result()
    print(f"rank {rank}: {sums} {again is group} {time.monotonic() - begun < 60}", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()
