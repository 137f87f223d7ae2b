"""Whether torch by itself stands still where a wrapped model is released: ``python -m tests.faults.release``.

After ``destroy_process_group`` the reducer has the last reference to the group. Where the model goes, the main thread
waits for gloo's thread, and that one for something of Python's. ddpfix is not imported here. Two of 300 runs of
docs/dev/faults.md were not over for this. Ends with 1 if a rank stood still, and prints where.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.ports import free_port

RANKS = 3
# Seconds for a round, which takes much less than one.
LIMIT = 20.0


def trained() -> None:
    """Three steps, and the end of the group; the model goes with the frame."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()


def rank(number: int, port: int, rounds: int) -> None:
    """One rank; rounds have a group each, by one store."""
    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, RANKS, number == 0)
    for each in range(rounds):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        place = distributed.PrefixStore(str(each), store)
        distributed.init_process_group("gloo", store=place, rank=number, world_size=RANKS)
        trained()
        faulthandler.cancel_dump_traceback_later()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.release", description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="how often a model is trained and released (400)")
    rounds, port, children = parser.parse_args().rounds, free_port(), []
    for number in range(RANKS):
        child = os.fork()
        if child == 0:
            rank(number, port, rounds)
            os._exit(0)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    stood = any(codes)
    print(f"torch {torch.__version__}, {rounds} rounds: {'a rank stood still' if stood else 'no rank stood still'}")
    return int(stood)


if __name__ == "__main__":
    sys.exit(main())
