"""A hang tells the epoch and the batch of FunASR's own entries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.funasr import launch, recipes, trained
from tests.support import positions, ranks

# Sixteen utterances, two a batch.
BATCHES = 8
SCRIPT = """\
import ddpfix.auto
import runpy, sys
import funasr
from funasr.register import tables
from tests.support import positions
positions.follow(tables.model_classes["Conformer"])
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(trained.release() < (1, 0, 18), reason="training needs edits")
@pytest.mark.parametrize("entry", trained.entries())
def test_epoch_and_batch_of_an_entry(entry: str, tmp_path: Path) -> None:
    config = recipes.write(tmp_path, "Conformer", train_conf={"max_epoch": 2, "keep_nbest_models": 10})
    script = tmp_path / "told.py"
    script.write_text(SCRIPT)
    arguments = [f"--config-path={config.parent}", f"--config-name={config.name}", f"hydra.run.dir={tmp_path}"]
    command = [sys.executable, str(script), str(launch.package() / "bin" / f"{entry}.py"), *arguments]
    code, printed = ranks.run(command, ranks.with_release(), tmp_path, 200)
    assert code == 0, printed[-4000:]
    found = positions.told(printed)
    # Up to 1.0.25 the epochs are 0 to max_epoch.
    epochs = sorted({each["epoch"] for each in found})
    assert epochs in ([0, 1], [0, 1, 2])
    assert [each["epoch"] for each in found] == [epoch for epoch in epochs for _ in range(BATCHES)]
    assert all(each["counter"].startswith("batch_idx ") for each in found)
    assert positions.counts(found) == len(epochs) * list(range(BATCHES))
