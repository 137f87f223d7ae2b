"""A backward of one thread while another one is in the forward of its model: each model is told of its own alone."""

from __future__ import annotations

import json
import sys
from typing import Any, List

import pytest

from tests.support import ranks

pytestmark = [pytest.mark.patches("torch.agreement"), pytest.mark.sampled(inside=False, cells=True)]

# The forward of the first thread's model stands still on rank 0 while the second thread calls its backwards.
PROGRAM = """
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
distributed.barrier()
print(json.dumps([done[0], done[1]]))
distributed.destroy_process_group()
"""


def printed(ddpfix: str) -> List[Any]:
    """What each of two ranks has found."""
    ended = ranks.side_by_side([[sys.executable, "-c", PROGRAM]] * 2, ranks.of_a_shell(2, {"DDPFIX": ddpfix}))
    assert [each.code for each in ended] == [0, 0], ended
    return [json.loads(each.output.splitlines()[-1]) for each in ended]


def test_the_program_trains_as_in_plain_torch() -> None:
    plain, patched = printed("0"), printed("1")
    assert patched == plain and patched[0] == patched[1]
