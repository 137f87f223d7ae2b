"""Warnings of torch point to the line of the program, also where ddpfix has wrapped what warns."""

from __future__ import annotations

import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, List

import pytest

from ddpfix.patching import attribution
from tests.support import ranks

PROGRAM = """
import warnings
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("always")
distributed.init_process_group("gloo", rank=0, world_size=1, init_method="file://{store}")
with warnings.catch_warnings(record=True) as found:
    model = DistributedDataParallel(torch.nn.Linear(2, 2), check_reduction=True)  # here
    loss = model(torch.ones(1, 2)).sum()
    torch.autograd.backward(loss, grad_variables=torch.tensor(1.0))  # here
for each in found:
    print(each.filename, each.lineno, each.category.__name__)
"""


def lines(script: Path, on: str) -> List[str]:
    environ = ranks.environment({"DDPFIX": on, "DDPFIX_LOG": "off"})
    script.with_name("store").unlink(missing_ok=True)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environ, cwd=str(script.parent), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def test_they_are_the_same_as_in_plain_torch(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(store=tmp_path / "store"))
    plain = lines(script, "0")
    assert len(plain) == 2 and lines(script, "1") == plain
    if not all("distributed.py" in line or "autograd" in line for line in plain):
        # Older releases of torch name a line of their own.
        here = [number for number, line in enumerate(script.read_text().splitlines(), 1) if line.endswith("# here")]
        assert plain == [f"{script} {number} FutureWarning" for number in here]


def warns(value: int, *, stacklevel: int) -> int:
    warnings.warn("old", stacklevel=stacklevel)
    return value


def test_the_result_and_the_line_are_the_callers() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert attribution.call(warns, 3, stacklevel=2) == 3
    line = test_the_result_and_the_line_are_the_callers.__code__.co_firstlineno + 3
    assert [(each.filename, each.lineno) for each in found] == [(__file__, line)]


def fails() -> Any:
    raise ValueError("no")


def test_an_error_comes_through_with_lines_of_the_program_alone() -> None:
    with pytest.raises(ValueError) as found:
        attribution.call(fails)
    files = {frame.filename for frame in traceback.extract_tb(found.value.__traceback__)}
    assert files == {__file__, attribution.__file__}
