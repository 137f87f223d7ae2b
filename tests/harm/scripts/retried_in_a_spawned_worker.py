import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


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
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        for attempt in range(2):
            mp.spawn(work, args=(os.path.join(folder, f"meet{attempt}"), attempt), nprocs=2)
            print("attempt", attempt, flush=True)
