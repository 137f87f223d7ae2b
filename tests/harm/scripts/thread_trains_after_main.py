import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank):
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(2, 2))
    for step in range(6):
        if rank == 1 and step == 3:
            time.sleep(32)
        model.zero_grad()
        model(torch.full((1, 2), float(rank + step))).sum().backward()
    print([each.grad.tolist() for each in model.parameters()], flush=True)
    dist.destroy_process_group()


dist.init_process_group("gloo")
threading.Thread(target=train, args=(dist.get_rank(),)).start()
