"""A hang tells the epoch and the batch of a recipe: those of the Brain's own counters."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.speechbrain import recipes
from tests.support import positions, ranks

# Twelve utterances, two a batch.
BATCHES, EPOCHS = 6, 2


def test_epoch_and_batch_of_a_recipe(tmp_path: Path) -> None:
    recipes.write(tmp_path, number_of_epochs=str(EPOCHS))
    shutil.copy(recipes.TRAIN, tmp_path)
    script = tmp_path / "train.py"
    head = "    def compute_forward(self, batch, stage):\n"
    line = "        positions.tell(stage == sb.Stage.TRAIN)\n"
    text = script.read_text().replace(head, head + line, 1)
    script.write_text(text.replace("import sys\n", "import sys\n\nfrom tests.support import positions\n", 1))
    command = [sys.executable, "train.py", "train.yaml", "--device=cpu"]
    code, printed = ranks.run(command, ranks.with_release(), tmp_path, 120)
    assert code == 0, printed[-4000:]
    found = positions.told(printed)
    assert [each["epoch"] for each in found] == [epoch for epoch in (1, 2) for _ in range(BATCHES)]
    assert all(each["counter"].startswith("step ") for each in found)
    assert positions.counts(found) == EPOCHS * list(range(1, BATCHES + 1))
    # In validation the epoch stays what it is.
    assert {each["epoch"] for each in positions.told(printed, False)} == {1, 2}
