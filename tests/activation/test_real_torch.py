"""With the real torch: the patches are in place however ddpfix was switched on, and on every rank of a launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Optional

import pytest

from tests.activation.support import ROOT, Place, start

RANKS = Path(__file__).with_name("ranks.py")
# What a process without a group never needs waits for one.
APPLIED = """
import torch, ddpfix
from torch import distributed
before = ddpfix.report().patch("torch.agreement").state
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
print(ddpfix.report().active, before, ddpfix.report().patch("torch.agreement").state)
"""
LATE = "import torch\nimport ddpfix.auto\n" + APPLIED

# The words after the interpreter, the program, and DDPFIX.
ACTIVATIONS: Dict[str, List[Optional[str]]] = {
    "import first": ["program.py", "import ddpfix.auto\n" + APPLIED, None],
    "import late": ["program.py", LATE, None],
    "variable": ["-m program", APPLIED, "1"],
    "run script": ["-m ddpfix run program.py", APPLIED, None],
    "run module": ["-m ddpfix run -m program", APPLIED, None],
    "run code": ["-m ddpfix run -c from|program|import|*", APPLIED, None],
    "run program": ["-m ddpfix run sh start.sh", APPLIED, None],
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_the_patches_are_applied(real: Place, tmp_path: Path, kind: str) -> None:
    words, program, variable = ACTIVATIONS[kind]
    (tmp_path / "program.py").write_text(program or "", encoding="utf-8")
    (tmp_path / "start.sh").write_text("python program.py\n", encoding="utf-8")
    command = [word.replace("|", " ") for word in (words or "").split()]
    done = real.run(*command, cwd=tmp_path, DDPFIX=variable)
    before = "applied" if kind == "import late" else "registered"
    assert (done.returncode, done.stdout) == (0, f"True {before} applied\n"), done.stderr


# Each launch finds a free port by itself: other jobs may be running on this machine.
LAUNCHES = {
    "run before torchrun": "python -m ddpfix run torchrun --standalone --nproc_per_node=2 {script} a",
    "run behind torchrun": "torchrun --standalone --nproc_per_node=2 -m ddpfix run {script} a",
    "run before the module": "ddpfix run -m torch.distributed.run --standalone --nproc_per_node=2 -m {module} a",
    "variable and no python": "python -m torch.distributed.run --standalone --nproc_per_node=2 "
    "--no-python {python} {script} a",
    # The option --cpu alone starts one process; what asks for several has the name of the GPU case, and works without.
    "run before accelerate": "python -m ddpfix run accelerate launch --multi_gpu --num_processes 2 --num_machines 1 "
    "--mixed_precision no --dynamo_backend no --main_process_port 0 {script} a",
}


@pytest.mark.parametrize(
    "launch", [pytest.param(name, marks=pytest.mark.sampled(inside=name == "run behind torchrun")) for name in LAUNCHES]
)
def test_every_rank_of_a_launcher(real: Place, tmp_path: Path, launch: str) -> None:
    module = "module" in launch
    words = LAUNCHES[launch].format(script=RANKS, module="tests.activation.ranks", python=real.python).split()
    variable = "1" if launch.startswith("variable") else None
    env = real.env(DDPFIX=variable, OUT=str(tmp_path), PYTHONPATH=str(ROOT) if module else None)
    done = start([real.bin / words[0], *words[1:]], env, tmp_path)
    assert done.returncode == 0, done.stderr
    # The launcher and its ranks say nothing but the one line of the process group.
    assert sum(line.startswith("ddpfix") for line in done.stderr.splitlines()) == 1, done.stderr
    for rank in ("0", "1"):
        seen = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert (seen["finders"], seen["steps"], seen["argv"]) == (1, "applied", [str(RANKS), "a"])
        assert seen["main"] == ["__main__", "tests.activation.ranks" if module else None]
        assert module or seen["path"] == str(RANKS.parent)
