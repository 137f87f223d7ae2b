import copy
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x)


class Numbers(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((3,), float(index + 20 * dist.get_rank()))


class Wrapped(DDP):
    pass


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Wrapped(Tiny(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
for _ in range(15):
    for batch in DataLoader(Numbers(), batch_size=4):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    data = pickle.dumps([model.module, Tiny, Wrapped, Numbers(), optimizer.state_dict()])
    print(len(data), b"ddpfix" in data, b"patches" in data, pickle.loads(data)[0].state_dict())
    copy.deepcopy(model.module)
dist.destroy_process_group()
