"""Ways in which WeNet's recipes start ``wenet/bin/train.py``: every rank is patched.

An item of ``--override_config`` that nobody can read tells them apart: unpatched WeNet skips it with a line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.wenet import trees

REFUSED = "ValueError: --override_config 'nonsense': no key and value. Write "
NEEDED = (
    "--data_type",
    "raw",
    "--train_data",
    "x",
    "--cv_data",
    "x",
    "--model_dir",
    "m",
    "--override_config",
    "nonsense",
)
# One background process a GPU and wait, as recipes up to 2.2.1 do it, with a path that is relative.
RECIPE = """
cd {tree}/wenet
export PYTHONPATH=../:$PYTHONPATH
for rank in 0 1; do
  RANK=$rank {python} {script} {words} > {out}/$rank.log 2>&1 &
done
wait
"""


def start(words: List[Any], environ: Dict[str, str], folder: Path) -> Any:
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


def arguments(folder: Path, tree: Path) -> List[str]:
    config = folder / "train.yaml"
    config.write_text("accum_grad: 1\ndataset_conf: {}\n")
    symbols = ["--symbol_table", "x"] if trees.version(tree) < "3" else []
    return ["--config", str(config), *symbols, *NEEDED]


def script(tree: Path) -> Path:
    return tree / "wenet" / "bin" / "train.py"


@pytest.mark.parametrize("tree", trees.every(("v3",), trees.since("v2.0.0")))
def test_the_script_itself(tree: Path, tmp_path: Path) -> None:
    """Some releases of torchaudio and torch have to be mended for it to begin at all."""
    done = start([sys.executable, script(tree), *arguments(tmp_path, tree)], trees.environ(tree, DDPFIX="1"), tmp_path)
    assert done.returncode == 1 and REFUSED in done.stdout, done.stdout


@pytest.mark.parametrize("tree", trees.every(("v3",), ("v2.0.0", "main")))
def test_unpatched_goes_on(tree: Path, tmp_path: Path) -> None:
    """With all our patches off, but for the imports that could not be done here."""
    environ = trees.environ(tree, DDPFIX="1", DDPFIX_OVERRIDES="off")
    done = start([sys.executable, script(tree), *arguments(tmp_path, tree)], environ, tmp_path)
    assert REFUSED not in done.stdout
    if tree.parent != trees.STAND_INS:
        assert "the overrive nonsense format not correct, skip it" in done.stdout, done.stdout


@pytest.mark.parametrize("tree", trees.every(("v3",), ("v2.2.1",)))
def test_a_recipe_with_one_process_a_gpu(tree: Path, tmp_path: Path) -> None:
    words = " ".join(arguments(tmp_path, tree))
    text = RECIPE.format(tree=tree, python=sys.executable, script="bin/train.py", words=words, out=tmp_path)
    done = start(["bash", "-c", text], trees.environ(Path(os.devnull), DDPFIX="1"), tmp_path)
    assert done.returncode == 0
    for rank in (0, 1):
        log = (tmp_path / f"{rank}.log").read_text()
        assert REFUSED in log, log
