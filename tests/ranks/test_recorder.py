"""What torch's flight recorder has of the default group: how many collectives have ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.torch_version import TorchVersion

from ddpfix.groups import internals
from tests.support import ranks

KNOWS = TorchVersion(torch.__version__) >= "2.13"


@pytest.fixture
def group(tmp_path: Path) -> Any:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


# In a process of its own: the recorder keeps the numbers of groups that are no more. gloo's thread notes the end of a
# collective a moment after the caller has gone on.
PROGRAM = """
import sys, time, torch
from torch import distributed
from ddpfix.groups import internals
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
found = [internals.ended()]
def ended(number):
    until = time.monotonic() + 20
    while internals.ended() != number and time.monotonic() < until:
        time.sleep(0.001)
    return internals.ended()
for number in (1, 2, 3):
    distributed.all_reduce(torch.ones(2))
    found.append(ended(number))
other = distributed.new_group([0])
distributed.all_reduce(torch.ones(2), group=other)
time.sleep(0.2)
print([*found, internals.ended()])
"""


@pytest.mark.skipif(not KNOWS, reason="2.13 is the oldest torch whose recorder was seen to follow gloo")
def test_collectives_that_have_ended_are_counted_for_the_default_group(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = subprocess.run(words, env=ranks.environment(), capture_output=True, text=True, timeout=60)
    assert ended.stdout == "[None, 1, 2, 3, 3]\n", ended


def test_two_groups_of_one_number_are_not_told_apart(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = internals.collectives_of(internals.default_group())
    for recorded, ended in (
        ([(begun, 0)], 0),
        ([(begun, 0), (begun + 1, 5)], 0),
        ([(begun, 0), (begun, 1)], None),
        ([(begun, -1)], None),
        ([], None),
    ):
        monkeypatch.setattr(internals, "recorded", lambda recorded=recorded: recorded)
        assert internals.ended() == ended
    monkeypatch.setattr(internals, "recorded", lambda: 1 / 0)
    assert internals.ended() is None
