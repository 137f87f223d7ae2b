"""What users were promised stays: who failed, who was killed, where a job stands."""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.harm.made import fit, fitted
from tests.harm.program import program


@program(
    codes=(1, 1),
    due=(r"rank 1 failed.*ValueError: bad sample",),
    # A rank that hears of it before it fails itself says it twice, and the second time in short.
    may=(r"this rank ends because rank 1 failed in step 5 \(above\)",),
    sample=True,
)
def rank_that_raises(rank, size):
    wrapped = fitted(rank)
    if rank == 1:
        raise ValueError("bad sample")
    fit(wrapped, rank, other=True)


@program(codes=(1, -9), due=(r"rank 1",))
def rank_that_is_killed(rank, size):
    wrapped = fitted(rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    fit(wrapped, rank, other=True)


@program(group=False, codes=(1, 0), due=(r"rank 1",), may=(r".*",), leaves=("ddpfix-hang-",), slow=True)
def collective_that_runs_out_of_time(rank, size):
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        time.sleep(35)
        os._exit(0)
    dist.all_reduce(torch.ones(1))
