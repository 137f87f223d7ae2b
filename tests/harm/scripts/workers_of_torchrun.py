import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, box = dist.get_rank(), torch.zeros(1)
if rank == 0:
    for source in (1, 2):
        dist.recv(box, source)
    print("got", box.item(), flush=True)
else:
    time.sleep(27 if rank == 2 else 0)
    dist.send(torch.full((1,), float(rank)), 0)
dist.destroy_process_group()
