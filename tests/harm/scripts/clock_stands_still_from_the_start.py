"""A program that freezes all its clocks before anything else is imported, and ends with its group up."""

import time

for name in ("monotonic", "perf_counter", "process_time", "time"):
    setattr(time, name, lambda: 100.0)
time.sleep = lambda seconds: None

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

dist.init_process_group("gloo")
wrapped = DDP(torch.nn.Linear(4, 2))
for _ in range(20):
    wrapped(torch.ones(1, 4)).sum().backward()
dist.barrier()
print("done", wrapped.module.weight.grad)
