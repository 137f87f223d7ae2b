import unittest

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


class Tests(unittest.TestCase):
    def test_one(self):
        self.assertEqual(2, 3)

    def test_two(self):
        train()


result = unittest.main(exit=False, argv=["tests"]).result
dist.barrier()
print(len(result.failures))
