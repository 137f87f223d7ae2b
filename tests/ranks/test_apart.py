"""Ranks that do not do the same: what the last words say of backwards that differ, of a signal, of one rank's own step.

Fewer backwards on one rank: a batch that is skipped because its loss is not finite, PPO's early stop.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

import pytest
import torch

from tests.ranks.test_failures import LONG, Job, job
from tests.support import results

BACKWARDS = r"Backward was called 5 times in 6 forwards on rank 1, 6 times in 6 on rank 0"


def said(found: Job, words: str) -> List[List[str]]:
    """The lines of ddpfix on each rank with these words."""
    return [
        [line for line in results.lines(text) if line.startswith("ddpfix") and words in line] for text in found.ranks
    ]


@pytest.mark.patches("torch.failures")
@pytest.mark.parametrize(
    "how, place, end",
    [
        ("skips_and_leaves", r" near failing\.py:\d+", "left its process group"),
        pytest.param("skips", r" near failing\.py:\d+", "reached the end of its program", marks=LONG),
        pytest.param("skips_last", "", "reached the end of its program", marks=LONG),
    ],
)
def test_a_skipped_backward_is_the_cause(tmp_path: Path, how: str, place: str, end: str) -> None:
    found = job(tmp_path, how, DDPFIX="1")
    assert found.code == 1 and found.seconds < 40, found
    words = found.last_words()[0]
    assert re.search(rf"rank 1 {end} in step 6\. {BACKWARDS}: rank 1 skipped one{place}\. ", words), found
    assert "all_reduce the decision" in words and "DDPFIX_UNEVEN" not in words and len(words) <= 240, found


@pytest.mark.skipif(
    not hasattr(torch.distributed.Reducer, "_check_reducer_finalized"),
    reason="under torchrun of torch 2.0 rank 0 keeps the store, which ends with it: nothing can be asked then",
)
@pytest.mark.patches("torch.failures")
def test_a_rank_that_a_signal_has_ended_is_called_by_it(tmp_path: Path) -> None:
    """gloo aborts a rank where sizes differ: no word of a lack of memory."""
    # The launcher ends the other rank when it looks, and has read the exit code then.
    found = job(tmp_path, "ragged", "--monitor_interval", "6", DDPFIX="1")
    if "exitcode  : -6" not in found.summary:
        pytest.skip("this gloo raises an error where sizes differ")
    assert "Signal 6 (SIGABRT)" in found.summary and "terminate called after throwing" in "".join(found.ranks), found
    words = [line for lines in said(found, "ended without a word") for line in lines]
    assert len(words) == 1 and "It was ended by SIGABRT, as when gloo" in words[0], found
    assert re.search(r"Rank \d failed in (all_gather|barrier)", words[0]), found


@pytest.mark.patches("torch.finalize")
@pytest.mark.parametrize(
    "how, counts",
    [
        ("left_out_here", [0, 1]),
        pytest.param("left_out_on_the_first", [1, 0], marks=LONG),
        pytest.param("left_out_on_both", [1, 0], marks=LONG),
    ],
)
def test_the_lowest_rank_on_which_it_happened_says_it(tmp_path: Path, how: str, counts: List[int]) -> None:
    found = job(tmp_path, how, DDPFIX="1")
    lines = said(found, "2 parameters of Parts (")
    assert found.code == 0 and [len(each) for each in lines] == counts, found
    assert how != "left_out_here" or lines[1][0].startswith("ddpfix: on rank 1: "), found


@LONG
@pytest.mark.patches("torch.finalize")
def test_what_goes_on_for_many_steps_on_one_rank_is_said_once(tmp_path: Path) -> None:
    found = job(tmp_path, "added_here", DDPFIX="1")
    lines = said(found, "DDP does not average 1 parameter of Parts")
    assert found.code == 0 and [len(each) for each in lines] == [0, 1], found


@pytest.mark.patches("torch.divergence")
@pytest.mark.parametrize(
    "how, number", [("short_without_average", 1), pytest.param("averaged_at_the_end", 0, marks=LONG)]
)
def test_a_short_run_that_was_never_averaged_hears_of_it_at_its_end(tmp_path: Path, how: str, number: int) -> None:
    found = job(tmp_path, how, DDPFIX="1")
    assert found.code == 0, found
    lines = said(found, "this Linear differs from rank 0's: in 5 optimizer steps, DDP never averaged the last backward")
    assert [len(each) for each in lines] == [0, number], found
