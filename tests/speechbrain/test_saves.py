"""Checkpoints part no ranks where the main process saves alone; on real releases."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest
import torch

from tests.speechbrain import launch, tiny_runs
from tests.speechbrain.tiny_runs import Side, as_by_hand, by_hand, run, since

pytestmark = pytest.mark.skipif(not since("0.5.16"), reason="on_stage_end runs on the main process alone")
HAS_BROADCAST = since("0.5.16", "1.0.0")
EPOCH: List[List[tiny_runs.Micro]] = [[(0, 100)], [(1, 101)], [(2, 102)]]
WAYS = ("run_on_main", "main_process_only")


def scenarios(folder: Path, ddpfix: bool) -> List[launch.Scenario]:
    # A run that hangs is ended early: it is expected to.
    limit = 30 if ddpfix else 8
    plans = [run(folder, way, main=way, number_of_epochs=2, timeout=limit) for way in WAYS]
    return [*plans, run(folder, "all", number_of_epochs=1, timeout=limit)]


unpatched, patched = tiny_runs.sides(scenarios)


def saved(where: Path, name: str) -> List[Path]:
    return list((where / name / "save").glob("CKPT*"))


@pytest.mark.parametrize("way", WAYS)
def test_unpatched_deadlocks_where_the_main_process_saves_alone(unpatched: Side, way: str) -> None:
    runs = unpatched[1]
    if HAS_BROADCAST:
        assert any(result.hung or result.error for result in runs[way])
    else:
        assert tiny_runs.alike(runs[way])


@pytest.mark.patches("speechbrain.checkpoints")
@pytest.mark.parametrize("way", WAYS)
def test_the_main_process_saves_alone(patched: Side, way: str) -> None:
    as_by_hand(patched, way, EPOCH * 2)
    last = max(saved(patched[0], way), key=lambda checkpoint: checkpoint.stat().st_mtime)
    for name, weight in zip(("weight", "bias"), by_hand(EPOCH * 2)):
        assert torch.allclose(torch.load(last / "model.ckpt")[name], weight, atol=1e-6)


def test_what_every_rank_saves_is_one_checkpoint(unpatched: Side, patched: Side) -> None:
    for where, runs in (unpatched, patched):
        assert tiny_runs.alike(runs["all"]) and len(saved(where, "all")) == 1
