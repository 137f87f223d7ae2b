"""Warnings of torch point to the line of the program, also where ddpfix has wrapped what warns."""

from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Dict, List

from ddpfix import user_code
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


def test_a_function_of_ours_is_not_counted() -> None:
    code = compile(
        "def between(*args, **how):\n    return called(*args, **how)\n", user_code.OWN[-1] + "stage.py", "exec"
    )
    space: Dict[str, Any] = {"called": warns}
    exec(code, space)
    between: Any = space["between"]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        between(3, stacklevel=2)
        assert attribution.uncounted(functools.partial(between, 3))(stacklevel=2) == 3
    assert [each.filename for each in found] == [user_code.OWN[-1] + "stage.py", __file__]
    assert between.__code__.co_filename.startswith(user_code.OWN[-1])
    assert attribution.uncounted(between).__code__ is between.__code__


def test_a_function_of_the_programs_own_stays_as_it_is() -> None:
    code = warns.__code__
    assert attribution.uncounted(warns).__code__ is code
