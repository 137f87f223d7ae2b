"""A hang tells the epoch and the batch of a tree's own ``wenet/bin/train.py``, whose data have no sampler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import positions, ranks
from tests.wenet import recipe, trees

pytestmark = pytest.mark.sampled(inside=False, cells=True)
SCRIPT = """\
from importlib import import_module
from tests.support import positions
from tests.wenet import on_cpu, tiny_model
on_cpu.supply_names()
positions.follow(import_module(tiny_model.home() + ".transformer.asr_model").ASRModel)
on_cpu.main()
"""


@pytest.mark.parametrize("tree", trees.real(trees.since("v2.2.1")))
def test_epoch_and_batch_of_the_script(tree: Path, tmp_path: Path) -> None:
    recipe.write(tmp_path, 8, max_epoch=2)
    script = tmp_path / "told.py"
    script.write_text(SCRIPT)
    # As torch elastic has it: releases from 3.0.0 on make a group of one rank.
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29431"}
    command = [sys.executable, str(script), *recipe.command(tree, tmp_path)[1:]]
    code, printed = ranks.run(command, recipe.environ(tree, **rank), tmp_path, 200)
    assert code == 0, printed[-4000:]
    found = positions.told(printed)
    assert [each["epoch"] for each in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert positions.counts(found) == 2 * [0, 1, 2, 3], found
