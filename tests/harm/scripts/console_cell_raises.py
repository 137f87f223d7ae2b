import code
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
console = code.InteractiveConsole({"dist": dist})
for line in ("1 / 0", "import nothing_of_that_name", "print(dist.get_world_size())"):
    console.push(line)
dist.barrier()
sys.exit(0)
