import logging
import os
import sys
import tempfile

logging.basicConfig()
folder = tempfile.mkdtemp()
children = []
for rank in range(2):
    child = os.fork()
    if child == 0:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        sys.exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(codes)
for each in os.listdir(folder):
    os.remove(os.path.join(folder, each))
os.rmdir(folder)
