import argparse

import torch.distributed as dist
from a_few_steps import train


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
