"""What a rank prints last where DDP's error was explained, and who gets the warning that the flag brings."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from ddpfix.monitor.exit import last_words
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
model = nn.parallel.DistributedDataParallel(Net(), **{keywords})
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
distributed.destroy_process_group()
"""
WARNING = "did not find any unused parameters in the forward pass"
# DETAIL wraps the process group. With it, the constructor of DDP crashes in plain torch 2.13.
DEBUG = "DETAIL" if Version(torch.__version__) < Version("2.13") else "INFO"


def ended(folder: Path, uses_all: bool, keywords: str = "{}", **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM.format(all=uses_all, keywords=keywords))
    command = [*ranks.elastic(2), "train.py"]
    env = ranks.environment(environ)
    return subprocess.run(command, env=env, cwd=str(folder), capture_output=True, text=True, timeout=120)


@pytest.mark.ranks
@pytest.mark.patches("torch.failures")
def test_the_last_words_are_cause_and_cure(tmp_path: Path) -> None:
    found = ended(tmp_path, False, DDPFIX="1", DDPFIX_UNUSED="off")
    words = [line for line in found.stderr.splitlines() if line.startswith("ddpfix: rank ")]
    # Once: both ranks print into one stream.
    assert len(words) == 1, found.stderr
    for part in ("finished reduction", "train.py:16", "b (weight, bias)", "cause: b did not run", "DDPFIX_UNUSED=late"):
        assert part in words[0], words[0]
    assert "and by" not in words[0], words[0]


@pytest.mark.ranks
@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.patches("torch.flag")
def test_torchs_warning_of_the_flag_is_for_a_user_who_has_set_it(tmp_path: Path) -> None:
    # As errors: a warning that Python sees would end the program.
    asked = {"DDPFIX": "1", "DDPFIX_UNUSED": "find", "PYTHONWARNINGS": "error::UserWarning"}
    found = ended(tmp_path, True, TORCH_DISTRIBUTED_DEBUG=DEBUG, **asked)
    assert found.returncode == 0 and WARNING not in found.stderr, found.stderr
    told = "set find_unused_parameters=True, because DDPFIX_UNUSED=find asks for it"
    assert found.stderr.count(told) == 1, found.stderr
    found = ended(tmp_path, True, "{'find_unused_parameters': True}", **asked)
    assert found.returncode == 0 and found.stderr.count(WARNING) == 2, found.stderr
    # A healthy job has one line, about toolkits that it has imported.
    (line,) = [line for line in found.stderr.splitlines() if line.startswith("ddpfix")]
    assert re.fullmatch(r"ddpfix \S+: \d+ fixes in use for torch \S+ \(python -m ddpfix plan\)", line), line


class BeforeNotes(IndexError):
    """An error as it was before Python 3.11."""

    add_note = None


@pytest.mark.parametrize("kind", [IndexError, BeforeNotes])
def test_an_explanation_follows_the_error(kind: type) -> None:
    error = kind("index 3")
    last_words.explain(error, "Audio file 'a.wav' does not exist")
    assert last_words.words(error) == f"{kind.__name__}: index 3. Audio file 'a.wav' does not exist"
    inner = "IndexError: index 3\nddpfix: Audio file 'a.wav' does not exist"
    worker = IndexError(f"Caught IndexError in worker.\nOriginal Traceback (most recent call last):\n{inner}\n")
    assert last_words.words(worker) == "IndexError: index 3. Audio file 'a.wav' does not exist"
