import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def work(rank, path, attempt):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    dist.barrier()
    if attempt == 0 and rank == 1:
        dist.destroy_process_group()
        return
    if attempt == 0:
        try:
            raise RuntimeError("no memory for this batch size")
        except RuntimeError:
            os._exit(0)
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(2, 1))
    model(torch.full((1, 2), float(rank))).sum().backward()
    if rank == 0:
        print([each.grad.tolist() for each in model.parameters()], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        for attempt in range(2):
            mp.spawn(work, args=(os.path.join(folder, f"meet{attempt}"), attempt), nprocs=2)
            print("attempt", attempt, flush=True)
