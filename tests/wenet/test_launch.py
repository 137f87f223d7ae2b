"""Ways in which WeNet's recipes start ``wenet/bin/train.py``: every rank is patched.

An item of ``--override_config`` that nobody can read tells them apart: unpatched WeNet skips it with a line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import List, Tuple

import pytest

from tests.support import ranks
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


def arguments(folder: Path, tree: Path) -> List[str]:
    config = folder / "train.yaml"
    config.write_text("accum_grad: 1\ndataset_conf: {}\n")
    symbols = ["--symbol_table", "x"] if trees.version(tree) < "3" else []
    return ["--config", str(config), *symbols, *NEEDED]


def started(tree: Path, folder: Path, **environ: str) -> Tuple[int, str]:
    command = [sys.executable, str(tree / "wenet" / "bin" / "train.py"), *arguments(folder, tree)]
    return ranks.run(command, trees.environ(tree, **environ), folder, 240)


@pytest.mark.parametrize("tree", trees.every(("v3",), trees.since("v2.0.0")))
def test_the_script_itself(tree: Path, tmp_path: Path) -> None:
    """Some releases of torchaudio and torch have to be mended for it to begin at all."""
    code, printed = started(tree, tmp_path, DDPFIX="1")
    assert code == 1 and REFUSED in printed, printed


@pytest.mark.parametrize("tree", trees.every(("v3",), ("v2.0.0", "main")))
def test_unpatched_goes_on(tree: Path, tmp_path: Path) -> None:
    """With all our patches off, but for the imports that could not be done here."""
    _, printed = started(tree, tmp_path, DDPFIX="1", DDPFIX_OVERRIDES="off")
    assert REFUSED not in printed
    if tree.parent != trees.STAND_INS:
        assert "the overrive nonsense format not correct, skip it" in printed, printed


@pytest.mark.parametrize("tree", trees.every(("v3",), ("v2.2.1",)))
def test_a_recipe_with_one_process_a_gpu(tree: Path, tmp_path: Path) -> None:
    words = " ".join(arguments(tmp_path, tree))
    text = RECIPE.format(tree=tree, python=sys.executable, script="bin/train.py", words=words, out=tmp_path)
    code, printed = ranks.run(["bash", "-c", text], trees.environ(Path(os.devnull), DDPFIX="1"), tmp_path, 240)
    assert code == 0, printed
    for rank in (0, 1):
        log = (tmp_path / f"{rank}.log").read_text()
        assert REFUSED in log, log
