import atexit
import threading

import torch
import torch.distributed as dist

for number in range(3):
    atexit.register(print, "exit function", number, flush=True)
dist.init_process_group("gloo")
# The other rank leaves its group as it is.
if dist.get_rank() == 0:
    atexit.register(dist.destroy_process_group)
atexit.register(lambda: print("world size at the exit:", dist.get_world_size(), flush=True))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
print([each.grad.tolist() for each in model.parameters()])
atexit.register(lambda: print("threads at the exit:", threading.active_count(), flush=True))
print(atexit._ncallbacks() > 0)
dist.barrier()
