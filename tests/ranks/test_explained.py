"""What a rank prints last where DDP's error was explained, and what is said of the warning that the flag brings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import ranks

# `b` is used from the second step on: torch warns of the flag in the first one, or fails in the second.
PROGRAM = """
import torch
from torch import distributed, nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, batch):
        return self.b(self.a(batch)) if {all} else self.a(batch)

distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Net())
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
distributed.destroy_process_group()
"""
WARNING = "did not find any unused parameters in the forward pass"


def ended(folder: Path, uses_all: bool, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM.format(all=uses_all))
    command = [*ranks.elastic(2), "train.py"]
    env = ranks.environment(environ)
    return subprocess.run(command, env=env, cwd=str(folder), capture_output=True, text=True, timeout=120)


@pytest.mark.ranks
@pytest.mark.patches("torch.failures")
def test_the_last_words_are_cause_and_cure(tmp_path: Path) -> None:
    found = ended(tmp_path, False, DDPFIX="1", DDPFIX_UNUSED="off")
    words = [line for line in found.stderr.splitlines() if line.startswith("ddpfix: rank ")]
    assert len(words) == 2 and words[0] == words[1], found.stderr
    for part in ("finished reduction", "train.py:16", "b (weight, bias)", "cause: b did not run", "DDPFIX_UNUSED=late"):
        assert part in words[0], words[0]
    assert "and by" not in words[0], words[0]


@pytest.mark.ranks
@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.patches("torch.flag")
def test_torchs_warning_of_the_flag_is_explained_once_where_ddpfix_has_set_it(tmp_path: Path) -> None:
    found = ended(tmp_path, True, DDPFIX="1", DDPFIX_UNUSED="find")
    assert found.returncode == 0 and found.stderr.count(WARNING) == 2, found.stderr
    assert found.stderr.count("torch's warning 'did not find any unused parameters' is about a step") == 1, found.stderr
    assert WARNING not in ended(tmp_path, True, DDPFIX="1").stderr
