import atexit
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


@atexit.register
def finish():
    if rank == 0:
        time.sleep(29)
    dist.barrier()
    print("all have finished", flush=True)
    dist.destroy_process_group()


dist.all_reduce(torch.ones(1))
