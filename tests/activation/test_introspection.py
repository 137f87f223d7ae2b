"""Python's own tools see what ddpfix has replaced in torch and transformers as they see plain torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

from tests.support.ranks import environment

CHILD = Path(__file__).with_name("introspected.py")
ROOT = CHILD.parent.parent.parent
Seen = Dict[str, Dict[str, str]]


def looked(ddpfix: str, *words: str) -> Seen:
    environ = {**environment({"DDPFIX": ddpfix}), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(CHILD), *words], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found: Seen = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> List[str]:
    """Each look at a place that shows something else than in plain torch."""
    patched = looked("1")
    assert "torch.nn.parallel.distributed:DistributedDataParallel.forward" in patched and len(patched) > 15
    places = tmp_path_factory.mktemp("introspection") / "places"
    places.write_text("\n".join(patched), encoding="utf-8")
    plain = looked("0", str(places))
    return [
        f"{place} {look}: {patched[place][look]} for {text}"
        for place, looks in plain.items()
        for look, text in looks.items()
        if patched[place][look] != text
    ]


def test_what_is_replaced_looks_as_in_plain_torch(differences: List[str]) -> None:
    assert not differences, "\n".join(differences)


MODES = """
import sys
import torch
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.overrides import TorchFunctionMode

calls = []

class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        calls.append(str(function))
        return function(*args, **(kwargs or {}))

class Called(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        calls.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))

distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
with Dispatched(), Called():
    nn.parallel.DistributedDataParallel(model)
print(calls)
"""


def test_modes_see_the_calls_of_ddps_constructor_alone(tmp_path: Path) -> None:
    seen = []
    for ddpfix in ("0", "1"):
        command = [sys.executable, "-c", MODES, str(tmp_path / ddpfix)]
        environ = environment({"DDPFIX": ddpfix})
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        seen.append(done.stdout)
    assert seen[0] == seen[1] and "copy_" in seen[0]
