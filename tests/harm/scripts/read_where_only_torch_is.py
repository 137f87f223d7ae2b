import os
import pickle
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(3, 3), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(45):
    model(torch.ones(2, 3) * dist.get_rank()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
name = f"model{dist.get_rank()}.pkl"
with open(name, "wb") as file:
    pickle.dump([model.module, optimizer.state_dict(), DDP, torch.utils.data.DataLoader], file)
reader = f"""
import pickle, sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("ddpfix"):
            raise ImportError(name)
sys.meta_path.insert(0, Refused())
print(pickle.load(open({name!r}, "rb"))[0].weight.sum().item())
"""
environ = {key: value for key, value in os.environ.items() if not key.startswith("DDPFIX")}
sys.stdout.flush()
sys.exit(subprocess.call([sys.executable, "-c", reader], env=environ))
