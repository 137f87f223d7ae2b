"""Epoch and batch of real trainers, as they are read where one of them stands still; the numbers are the trainer's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.ranks import progressing
from tests.support import ranks
from tests.support.installed import needed

SCRIPT = Path(progressing.__file__)
# The others run under nox -s rest.
_REST = pytest.mark.sampled(inside=False, cells=True)


def positions(name: str, folder: Path) -> List[Dict[str, Any]]:
    """What was read in each training forward of a job, on its first rank."""
    before = ranks.elastic(2) if name in progressing.TWO_RANKS else [sys.executable]
    code, text = ranks.run([*before, str(SCRIPT), name], ranks.environment(), folder, 120)
    assert code == 0, text[-4000:]
    return [json.loads(line[3:]) for line in text.splitlines() if line.startswith("AT ")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "plain" else _REST) for name in progressing.JOBS]
)
def test_epoch_and_batch(name: str, tmp_path: Path) -> None:
    if name == "lightning":
        needed("lightning", "pip install lightning")
    found = positions(name, tmp_path)
    batches = progressing.EPOCHS * progressing.BATCHES
    # Also where forward and backward are in the closure of the optimizer's step, as Lightning has it.
    assert {each["phase"] for each in found} == {"forward"}
    assert [each["epoch"] for each in found] == [number // progressing.BATCHES for number in range(batches)]
    # Trainers count from 0 or from 1, within the epoch or over all of them.
    counts = [int(each["counter"].split()[-1]) for each in found[: progressing.BATCHES]]
    assert counts in ([0, 1, 2, 3], [1, 2, 3, 4], [0, 0, 1, 1]), found
    if name in progressing.TWO_RANKS:
        assert [each["micro"] for each in found] == [1, 2] * (batches // 2)
    else:
        assert {each["micro"] for each in found} == {0}
