import argparse

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


def main():
    train()
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float)
    try:
        options = parser.parse_args(["--rate", "fast"])
    except SystemExit:
        options = parser.parse_args(["--rate", "0.1"])
    print(options)
    dist.barrier()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
