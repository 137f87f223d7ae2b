"""Where and how the ranks of a model meet: what one rank does alone does not count, and two groups count apart."""

from __future__ import annotations

import json
import sys
from typing import Any, List

import pytest

from tests.support import ranks

pytestmark = [pytest.mark.patches("torch.agreement"), pytest.mark.sampled(inside=False, cells=True)]

BEGIN = """
import copy, json, os, threading
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x):
        return self.first(x).pow(2), self.second(x).pow(2)

def train(model, steps=5):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        for output in model(torch.ones(2, 2) * (rank + 1)):
            output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]

rank = int(os.environ["RANK"])
torch.manual_seed(0)
"""
END = """
distributed.barrier()
print(json.dumps(found))
distributed.destroy_process_group()
"""
# torch refuses a model on one rank, and its program goes on.
REFUSED = """
distributed.init_process_group("gloo")
if rank == 0:
    for wrong in ({"module": nn.Linear(2, 2).requires_grad_(False)}, {"module": Heads(), "device_ids": [0, 1]}, {}):
        try:
            DistributedDataParallel(**wrong)
        except (RuntimeError, ValueError, TypeError):
            pass
torch.manual_seed(0)
found = train(DistributedDataParallel(Heads()))
"""
# One rank looks at a copy of its own before all ranks train another one.
COPIED = """
distributed.init_process_group("gloo")
model = DistributedDataParallel(Heads())
if rank == 0:
    copy.deepcopy(model)(torch.ones(2, 2))
found = train(copy.deepcopy(model))
"""
# Two threads train a model each, in groups of the same ranks, and not at the same time on both ranks.
THREADS = """
distributed.init_process_group("gloo")
groups = [distributed.new_group([0, 1]) for _ in range(2)]
models, done = [copy.deepcopy(Heads()) for _ in groups], {}

def run(number):
    if number == rank:
        others[number].wait(1)
    wrapped = DistributedDataParallel(models[number], process_group=groups[number])
    others[1 - number].set()
    done[number] = train(wrapped, 5 + number)

others = [threading.Event() for _ in groups]
threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
found = [done[0], done[1]]
"""
# A backward runs in one thread while the other one, on rank 0, is in the forward of its model.
WITHIN = """
distributed.init_process_group("gloo")
groups = [distributed.new_group([0, 1]) for _ in range(2)]
begun, ended, made, done = threading.Event(), threading.Event(), threading.Event(), {}

class Slow(Heads):
    def forward(self, x):
        if rank == 0:
            begun.set()
            ended.wait(60)
        return super().forward(x)

def first():
    model = DistributedDataParallel(copy.deepcopy(slow), process_group=groups[0])
    made.set()
    done[0] = train(model)

def second():
    made.wait(60)
    model = DistributedDataParallel(copy.deepcopy(heads), process_group=groups[1])
    if rank == 0:
        begun.wait(60)
    done[1] = train(model, 1)
    ended.set()
    done[1] = train(model)

slow, heads = Slow(), Heads()
threads = [threading.Thread(target=run) for run in (first, second)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
found = [done[0], done[1]]
"""
# A program counts the keys of the store that it has made.
COUNTED = """
store = distributed.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, rank == 0)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
keys = [store.num_keys()]
distributed.barrier()
found = train(DistributedDataParallel(Heads()))
distributed.barrier()
found = [*found, *keys, store.num_keys()]
distributed.barrier()
"""
PROGRAMS = {"refused": REFUSED, "copied": COPIED, "threads": THREADS, "within": WITHIN, "counted": COUNTED}


def printed(program: str, ddpfix: str) -> List[Any]:
    """What each of two ranks has found."""
    command = [sys.executable, "-c", BEGIN + program + END]
    ended = ranks.side_by_side([command] * 2, ranks.of_a_shell(2, {"DDPFIX": ddpfix}))
    assert [each.code for each in ended] == [0, 0], ended
    return [json.loads(each.output.splitlines()[-1]) for each in ended]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_trains_as_in_plain_torch(name: str) -> None:
    plain, patched = printed(PROGRAMS[name], "0"), printed(PROGRAMS[name], "1")
    assert patched == plain and patched[0] == patched[1]
