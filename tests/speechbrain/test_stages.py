"""Ranks agree on what a stage decides and saves, and on steps after a loss that is not finite: on real releases."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest
import torch

from tests.speechbrain import launch, tiny_runs
from tests.speechbrain.tiny_runs import Side, as_by_hand, by_hand, run, since

MAIN_ONLY = not since("0.5.16")
HAS_FACTOR = since("0.5.12")
BEFORE_1 = not since("1.0.0")
BROADCASTS = since("1.1.0")
RACES = since("0.5.16", "1.0.0")
# Rank 1 is slow between finding checkpoints and reading them.
SLOW = """
import time
from speechbrain.utils.checkpoints import Checkpointer
original = Checkpointer._list_checkpoint_dirs
def listed(self):
    folders = original(self)
    time.sleep(rank / 2)
    return folders
Checkpointer._list_checkpoint_dirs = listed
"""
EPOCH: List[List[tiny_runs.Micro]] = [[(0, 100)], [(1, 101)]]
THREE: List[List[tiny_runs.Micro]] = [[(0, 100)], [(1, 101)], [(2, 102)]]
# How the main process saves alone.
WAYS = ("run_on_main", "main_process_only")
on_main = pytest.mark.skipif(MAIN_ONLY, reason="on_stage_end runs on the main process alone")
# Rank 1 contributes nothing to the second of four steps.
BUT_ONE: List[List[tiny_runs.Micro]] = [[(0, 100)], [(1, None)], [(2, 102)], [(3, 103)]]


def scenarios(folder: Path, ddpfix: bool) -> List[launch.Scenario]:
    # A run that hangs is ended early: it is expected to.
    limit = 30 if ddpfix else 8
    # The unpatched 0.5.16 fails over its checkpoints now and then.
    keep = ddpfix or not RACES
    plans = [
        run(folder, "anneal", number_of_epochs=3, counts="2,2", anneal=0.01, keep=keep, timeout=limit),
        run(folder, "stop", number_of_epochs=3, counts="2,2", stop_at=1, keep=keep, timeout=limit),
        run(folder, "alone", alone=True, timeout=limit),
    ]
    if not MAIN_ONLY:
        plans += [run(folder, way, main=way, number_of_epochs=2, timeout=limit) for way in WAYS]
        plans += [run(folder, "all", number_of_epochs=1, timeout=limit)]
    if RACES:
        plans += [run(folder, "slow", counts="1,1", number_of_epochs=3, before=SLOW, timeout=limit)]
    if BEFORE_1:
        plans += [run(folder, "nan", nan="1:2", counts="4,4", timeout=limit)]
    if BEFORE_1 and HAS_FACTOR:
        three = ["--grad_accumulation_factor=3"]
        plans += [run(folder, "nan_last", three, nan="1:3", counts="6,6", timeout=limit)]
        plans += [run(folder, "nan_clipped", ["--max_grad_norm=0.01"], nan="1:2", counts="4,4", timeout=limit)]
    return plans


unpatched, patched = tiny_runs.sides(scenarios)


def test_unpatched_anneals_on_rank_0_only(unpatched: Side) -> None:
    first, second = unpatched[1]["anneal"]
    assert tiny_runs.well([first, second]) and first.lr == pytest.approx([0.1] * 4 + [0.001] * 2)
    if MAIN_ONLY:
        assert second.lr == [0.1] * 6
        assert first.steps[:4] == second.steps[:4] and first.steps[4] != second.steps[4]
    else:
        assert second.lr == first.lr and second.steps == first.steps


@pytest.mark.patches("speechbrain.stages")
def test_every_rank_anneals_alike(patched: Side) -> None:
    as_by_hand(patched, "anneal", EPOCH * 3, lr=[0.1] * 4 + [0.001] * 2)
    assert patched[1]["anneal"][1].lr == pytest.approx([0.1] * 4 + [0.001] * 2)


@pytest.mark.patches("speechbrain.stages")
def test_the_end_of_a_stage_stays_on_the_main_process_where_recipes_expect_it(patched: Side) -> None:
    where, _ = patched
    assert (where / "anneal" / "ends0").read_text().split() == ["1", "2", "3"]
    assert (where / "anneal" / "ends1").exists() != MAIN_ONLY
    assert len((where / "anneal" / "train_log.txt").read_text().splitlines()) == 3


@pytest.mark.patches("speechbrain.checkpoints")
@pytest.mark.skipif(not RACES, reason="rank 0 alone saves checkpoints, or there are barriers")
def test_old_checkpoints_are_deleted_while_nobody_reads_them(unpatched: Side, patched: Side) -> None:
    assert "FileNotFoundError" in str(unpatched[1]["slow"][1].error)
    where, runs = patched
    assert tiny_runs.alike(runs["slow"]) and len(runs["slow"][0].steps) == 3
    # The latest and the best, which are the same.
    assert len(list((where / "slow" / "save").glob("CKPT*"))) in (1, 2)


def test_unpatched_stops_on_rank_0_only(unpatched: Side) -> None:
    first, second = unpatched[1]["stop"]
    if MAIN_ONLY:
        # Rank 0 is gone: what rank 1 waits for comes to an end with gloo, once rank 0's process has ended.
        assert (second.hung or second.error) and not first.hung
        assert len(first.steps) == 2
    else:
        assert tiny_runs.alike([first, second]) and len(first.steps) == 2


@pytest.mark.patches("speechbrain.stages")
def test_every_rank_stops(patched: Side) -> None:
    where, runs = patched
    assert tiny_runs.alike(runs["stop"]) and len(runs["stop"][0].steps) == 2
    assert [tiny_runs.end(where, "stop", rank)["current"] for rank in (0, 1)] == [3, 3]


@pytest.mark.skipif(not BEFORE_1, reason="a NaN reaches all ranks alike")
def test_unpatched_parts_a_rank_whose_loss_is_not_finite(unpatched: Side) -> None:
    where, runs = unpatched
    first, second = runs["nan"]
    if since("0.5.15"):
        # One all-reduce less on rank 1: rank 0 waits for it until that process ends.
        assert first.hung or first.error
    else:
        # Rank 0 takes the step that rank 1 leaves out; its next loss is NaN, and rank 1 takes that step.
        assert tiny_runs.well([first, second]) and [len(result.steps) for result in (first, second)] == [2, 2]
        assert all(tiny_runs.end(where, "nan", rank)["weight"].isnan().all() for rank in (0, 1))


@pytest.mark.patches("speechbrain.finite")
@pytest.mark.skipif(not BEFORE_1, reason="a NaN reaches all ranks alike")
def test_a_rank_whose_loss_is_not_finite_contributes_nothing_and_steps(patched: Side) -> None:
    as_by_hand(patched, "nan", BUT_ONE)


@pytest.mark.patches("speechbrain.finite")
@pytest.mark.skipif(not (BEFORE_1 and HAS_FACTOR), reason="no accumulation, or a NaN reaches all ranks alike")
def test_the_same_in_the_last_micro_batch_of_a_window_and_with_clipping(patched: Side) -> None:
    as_by_hand(patched, "nan_last", [[(0, 100), (1, 101), (2, None)], [(3, 103), (4, 104), (5, 105)]])
    as_by_hand(patched, "nan_clipped", BUT_ONE, clip=0.01)


def test_unpatched_cannot_log_on_the_main_process_only(unpatched: Side) -> None:
    results = unpatched[1]["alone"]
    if BROADCASTS:
        assert any(result.hung or result.error for result in results)
    else:
        assert tiny_runs.alike(results)


@pytest.mark.patches("speechbrain.loggers")
def test_logging_on_the_main_process_only_is_no_collective(patched: Side) -> None:
    as_by_hand(patched, "alone", [*EPOCH, [(2, 102)]])
    # Three steps and one validation.
    assert len((patched[0] / "alone" / "train_log.txt").read_text().splitlines()) == 4


def saved(where: Path, name: str) -> List[Path]:
    return list((where / name / "save").glob("CKPT*"))


@on_main
@pytest.mark.parametrize("way", WAYS)
def test_unpatched_deadlocks_where_the_main_process_saves_alone(unpatched: Side, way: str) -> None:
    runs = unpatched[1]
    if RACES:
        assert any(result.hung or result.error for result in runs[way])
    else:
        assert tiny_runs.alike(runs[way])


@on_main
@pytest.mark.patches("speechbrain.checkpoints")
@pytest.mark.parametrize("way", WAYS)
def test_the_main_process_saves_alone(patched: Side, way: str) -> None:
    as_by_hand(patched, way, THREE * 2)
    last = max(saved(patched[0], way), key=lambda checkpoint: checkpoint.stat().st_mtime)
    for name, weight in zip(("weight", "bias"), by_hand(THREE * 2)):
        assert torch.allclose(torch.load(last / "model.ckpt")[name], weight, atol=1e-6)


@on_main
def test_what_every_rank_saves_is_one_checkpoint(unpatched: Side, patched: Side) -> None:
    for where, runs in (unpatched, patched):
        assert tiny_runs.alike(runs["all"]) and len(saved(where, "all")) == 1
