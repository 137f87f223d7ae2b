import io
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(2, 1))
    for step in range(3):
        model(torch.full((1, 2), float(dist.get_rank() + step))).sum().backward()
    print([each.grad.tolist() for each in model.parameters()], flush=True)


train()
sys.ps1 = "> "
try:
    eval("1 / 0")
except ZeroDivisionError as failure:
    sys.last_type, sys.last_value, sys.last_traceback = type(failure), failure, failure.__traceback__
    sys.excepthook(type(failure), failure, None)
kept, sys.stderr = sys.stderr, io.StringIO()
sys.stderr = kept
dist.barrier()
