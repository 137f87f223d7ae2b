"""A program that freezes its clock, and ends with its group up."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

time.monotonic = lambda: 100.0
dist.init_process_group("gloo")
wrapped = DDP(torch.nn.Linear(4, 2))
wrapped(torch.ones(1, 4)).sum().backward()
dist.barrier()
print("done")
