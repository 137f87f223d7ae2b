"""Checkpoints part no ranks: by the clock within an epoch, and on the main process alone; on real releases."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest
import torch

from tests.speechbrain import launch, tiny_runs
from tests.speechbrain.tiny_runs import Side, by_hand, error, run, since

HAS_BARRIER = not since("0.5.11")
HAS_BROADCAST = since("0.5.16", "1.0.0")
# 1.2 s between checkpoints: on the command line later releases take whole minutes only.
# The time is up on rank 1 after its first batch, and on rank 0 after its second one, which waits for rank 1.
SLOW = """
import time
from speechbrain.core import Brain
original = Brain.fit_batch
def fit_batch(self, batch):
    loss = original(self, batch)
    if rank == 1 and self.step == 1:
        time.sleep(2)
    return loss
Brain.fit_batch = fit_batch
begin = Brain.on_fit_start
def on_fit_start(self):
    self.ckpt_interval_minutes = 0.02
    return begin(self)
Brain.on_fit_start = on_fit_start
"""
EPOCH: List[List[tiny_runs.Micro]] = [[(0, 100)], [(1, 101)], [(2, 102)]]
WAYS = ("run_on_main", "main_process_only")


def scenarios(folder: Path, ddpfix: bool) -> List[launch.Scenario]:
    # A run that hangs is ended early: it is expected to.
    limit = 30 if ddpfix else 8
    plans = [run(folder, "interval", keep=False, before=SLOW, timeout=limit)]
    if since("0.5.16"):
        plans += [run(folder, way, main=way, number_of_epochs=2, timeout=limit) for way in WAYS]
        plans += [run(folder, "all", number_of_epochs=1, timeout=limit)]
    return plans


unpatched, patched = tiny_runs.sides(scenarios)


def saved(where: Path, name: str) -> List[Path]:
    return list((where / name / "save").glob("CKPT*"))


def test_unpatched_parts_ranks_by_their_clocks(unpatched: Side) -> None:
    where, runs = unpatched
    first, second = runs["interval"]
    if HAS_BARRIER:
        assert first.hung or first.error or second.hung or second.error
        assert len(first.steps) < 3
    else:
        assert tiny_runs.alike([first, second]) and error(where, "interval", by_hand(EPOCH)) < 1e-6


@pytest.mark.patches("speechbrain.interval")
def test_nobody_waits_for_a_checkpoint_within_an_epoch(patched: Side) -> None:
    where, runs = patched
    assert tiny_runs.alike(runs["interval"]) and len(runs["interval"][0].steps) == 3
    assert max(error(where, "interval", by_hand(EPOCH), rank) for rank in (0, 1)) < 1e-6
    # Rank 0's clock was up once, after two steps.
    (checkpoint,) = saved(where, "interval")
    for name, expected in zip(("weight", "bias"), by_hand(EPOCH[:2])):
        assert torch.allclose(torch.load(checkpoint / "model.ckpt")[name], expected, atol=1e-6)


@pytest.mark.skipif(not since("0.5.16"), reason="on_stage_end runs on the main process alone")
@pytest.mark.parametrize("way", WAYS)
def test_unpatched_deadlocks_where_the_main_process_saves_alone(unpatched: Side, way: str) -> None:
    runs = unpatched[1]
    if HAS_BROADCAST:
        assert any(result.hung or result.error for result in runs[way])
    else:
        assert tiny_runs.alike(runs[way])


@pytest.mark.patches("speechbrain.main_saves")
@pytest.mark.skipif(not since("0.5.16"), reason="on_stage_end runs on the main process alone")
@pytest.mark.parametrize("way", WAYS)
def test_the_main_process_saves_alone(patched: Side, way: str) -> None:
    where, runs = patched
    assert tiny_runs.alike(runs[way]) and len(runs[way][0].steps) == 6
    expected = by_hand(EPOCH * 2)
    assert max(error(where, way, expected, rank) for rank in (0, 1)) < 1e-6
    last = max(saved(where, way), key=lambda checkpoint: checkpoint.stat().st_mtime)
    for name, weight in zip(("weight", "bias"), expected):
        assert torch.allclose(torch.load(last / "model.ckpt")[name], weight, atol=1e-6)


@pytest.mark.skipif(not since("0.5.16"), reason="on_stage_end runs on the main process alone")
def test_what_every_rank_saves_is_one_checkpoint(unpatched: Side, patched: Side) -> None:
    for where, runs in (unpatched, patched):
        assert tiny_runs.alike(runs["all"]) and len(saved(where, "all")) == 1
