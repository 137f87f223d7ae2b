import atexit

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
atexit.register(dist.destroy_process_group)
torch.manual_seed(0)
model = DDP(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((1, 2), float(dist.get_rank() + step))).sum().backward()
    optimizer.step()
print([each.tolist() for each in model.parameters()])
dist.barrier()
