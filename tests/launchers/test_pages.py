"""The programs of docs/{lightning,accelerate,transformers,notebooks}.md, as a user runs them on two ranks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from tests.support import ranks, readme
from tests.support.ranks import free_port

pytestmark = pytest.mark.sampled(inside=False)
ENVIRON = {"ACCELERATE_CONFIG_FILE": "", "OMP_NUM_THREADS": "1"}


def needed(package: str, how: str) -> None:
    """Skip a test where a package is not installed; one that is there and cannot be imported is an error."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"NOT RUN: {how}")
    importlib.import_module(package)


def programs(page: str) -> List[str]:
    """The programs of a page."""
    return re.findall(r"```python\n(.*?)```", (readme.DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def trained(folder: Path, text: str, switch: str, *launcher: str) -> subprocess.CompletedProcess[str]:
    """Run a program with DDPFIX as it is asked for, each time in the same way."""
    file = folder / "train.py"
    file.write_text(text, encoding="utf-8")
    environ = {**os.environ, **ranks.environment(), **ENVIRON, "DDPFIX": switch}
    words = [sys.executable, *launcher, str(file)]
    return subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True, timeout=300)


def lines(text: str) -> List[str]:
    """What ddpfix has printed; a progress bar may stand ahead of it."""
    return re.findall(r"ddpfix(?: 1\.\d\S*)?: .*", text)


def test_lightning(tmp_path: Path) -> None:
    needed("lightning", "pip install lightning")
    (program,) = programs("lightning.md")
    assert "were not used in producing the loss" in trained(tmp_path, program, "0").stderr
    done = trained(tmp_path, program, "1")
    assert done.returncode == 0, done.stderr
    start, unused = lines(done.stderr)
    assert "fixes in use for torch" in start and "2 parameters of Net (aux) got no gradient in a backward" in unused


def test_accelerate(tmp_path: Path) -> None:
    needed("accelerate", "pip install accelerate")
    (program,) = programs("accelerate.md")
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port())]
    assert "Expected to have finished reduction" in trained(tmp_path, program, "0", *launcher).stderr
    done = trained(tmp_path, program, "1", *launcher)
    assert done.returncode == 0 and "trained on 2" in done.stdout, done.stderr
    start, unused = lines(done.stderr)
    assert "accelerate" in start and "2 parameters of Net (aux) got no gradient in a backward" in unused


def test_the_trainer(tmp_path: Path) -> None:
    """Without ddpfix it fails where the page says so, with gradient checkpointing; with it, nowhere."""
    needed("transformers", "pip install transformers")
    (program,) = programs("transformers.md")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for text, code in ((program, 0), (program.replace('"out", ', '"out", gradient_checkpointing=True, '), 1)):
        assert trained(tmp_path, text, "0", *launcher).returncode == code
        done = trained(tmp_path, text, "1", *launcher)
        assert done.returncode == 0, done.stderr
        assert "ddpfix: all ranks skip the same layers of WavLMEncoder (rate 0.1)" in lines(done.stderr)


def test_a_notebook(tmp_path: Path) -> None:
    """Its cells, one after the other in one process, which is forked by the launcher like a kernel."""
    needed("accelerate", "pip install accelerate")
    first, train = programs("notebooks.md")
    done = trained(tmp_path, first + train + "\nddpfix.deactivate()\nnotebook_launcher(train, num_processes=2)\n", "0")
    # DDPFIX=0 wins over the first cell, so neither call trains.
    assert done.returncode != 0 and "trained on 2" not in done.stdout
    text = first + train + "\nprint(repr(ddpfix.report()))\nddpfix.deactivate()\n"
    done = trained(tmp_path, text + "notebook_launcher(train, num_processes=2)\n", "")
    assert done.stdout.count("trained on 2") == 1 and "registered: ready" in done.stdout
    assert done.returncode != 0 and "Expected to have finished reduction" in done.stderr
    assert sum("got no gradient in a backward" in line for line in lines(done.stderr)) == 1
