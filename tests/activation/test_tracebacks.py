"""Errors that pass a wrapper of ddpfix have the traceback that they have in plain torch, caught or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ddpfix import user_code
from ddpfix.patching import tracebacks, wrapped
from tests.support import ranks

# Each line of `raising` is a call that torch, a loader or the model refuses; what a program prints of it is compared.
PROGRAM = """
import os, traceback
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

distributed.init_process_group("gloo")

class Broken(nn.Linear):
    def forward(self, batch):
        if batch.shape[0] == 3:
            raise KeyError("no such speaker")
        return super().forward(batch)

class Holes(list):
    def __getitem__(self, at):
        raise FileNotFoundError("a.wav")

def refuse(self):
    raise ArithmeticError("no hook")

model = DistributedDataParallel(Broken(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range({steps}):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
frozen = nn.Linear(2, 2).requires_grad_(False)

def backward():
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    loss.backward()

raising = {{
    "forward": lambda: model(torch.ones(3, 4)),
    "shape": lambda: model(torch.ones(2, 5)),
    "evaluation": lambda: torch.no_grad()(lambda: model(torch.ones(3, 4)))(),
    "constructor": lambda: DistributedDataParallel(frozen),
    "argument": lambda: DistributedDataParallel(nn.Linear(2, 2), nothing=1),
    "loader": lambda: next(iter(DataLoader(Holes([1, 2])))),
    "graph": lambda: torch.ones(1).sum().backward(),
    "twice": backward,
    "group": lambda: distributed.init_process_group("gloo"),
}}
for name, call in raising.items():
    try:
        call()
    except Exception as error:
        frames = [(each.filename, each.lineno, each.name) for each in traceback.extract_tb(error.__traceback__)]
        if distributed.get_rank() == 0:
            print(name, type(error).__name__, frames, flush=True)
distributed.destroy_process_group()
"""
FAILING = """
import torch
from torch import distributed, nn
distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
model(torch.ones(2, 5))
"""


def started(folder: Path, program: str, environ: Dict[str, str], size: int = 2) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    command = [*ranks.elastic(size), "train.py"]
    env = ranks.environment(environ)
    return subprocess.run(command, env=env, cwd=str(folder), capture_output=True, text=True, timeout=180)


@pytest.mark.ranks
@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.parametrize("steps", [0, 12])
def test_errors_that_a_program_catches_have_torchs_frames_alone(tmp_path: Path, steps: int) -> None:
    program = PROGRAM.format(steps=steps)
    plain, ours = (started(tmp_path, program, {"DDPFIX": on}).stdout.splitlines() for on in ("0", "1"))
    assert len(plain) == 9, plain
    if sys.version_info >= (3, 11):
        assert ours == plain
    # Before, a bare ``raise`` leaves the frame of the outermost wrapper.
    assert [line.split()[:2] for line in ours] == [line.split()[:2] for line in plain]


@pytest.mark.ranks
@pytest.mark.sampled(inside=False, cells=True)
def test_what_is_printed_and_torchruns_summary_have_no_frame_of_ddpfix(tmp_path: Path) -> None:
    printed, _, summary = started(tmp_path, FAILING, {"DDPFIX": "1"}).stderr.partition("Root Cause")
    assert "mat1 and mat2" in printed and "mat1 and mat2" in summary
    own = str(Path(user_code.OWN[-1]))
    assert own not in summary
    assert sys.version_info < (3, 11) or own not in printed
    told = started(tmp_path, FAILING, {"DDPFIX": "1", "DDPFIX_LOG": "debug"}).stderr
    assert own in told


def frames(error: BaseException) -> List[str]:
    trace, found = error.__traceback__, []
    while trace is not None:
        found.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


def test_an_unexpected_error_of_ddpfix_keeps_its_frames() -> None:
    code = compile("def broken(*_):\n    return {}['typo']\n", user_code.OWN[-1] + "stage.py", "exec")
    space: Dict[str, Any] = {}
    exec(code, space)
    with pytest.raises(KeyError) as found:
        wrapped.called_by(space["broken"], None)(len, None, (), {})
    assert frames(found.value)[1:] == ["called", "broken"]
    assert "stage.py" in tracebacks.text(found.value)


def test_one_that_ddpfix_raises_on_purpose_does_not() -> None:
    code = compile("def refuse(*_):\n    raise RuntimeError('ddpfix: no')\n", user_code.OWN[-1] + "stage.py", "exec")
    space: Dict[str, Any] = {}
    exec(code, space)
    with pytest.raises(RuntimeError) as found:
        wrapped.called_by(space["refuse"], None)(len, None, (), {})
    assert frames(found.value)[1:] == (["called"] if sys.version_info < (3, 11) else [])
