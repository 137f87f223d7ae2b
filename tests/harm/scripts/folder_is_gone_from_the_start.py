"""A program whose folder is removed before its group comes up, which stays up."""

import os
import sys

import torch._dynamo

os.mkdir(f"gone{os.environ['RANK']}")
os.chdir(f"gone{os.environ['RANK']}")
os.rmdir(os.getcwd())
sys.path[:] = [each for each in sys.path if each]

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

dist.init_process_group("gloo")
wrapped = DDP(torch.nn.Linear(4, 2))
wrapped(torch.ones(1, 4)).sum().backward()
print("done", wrapped.module.weight.grad)
dist.destroy_process_group()
