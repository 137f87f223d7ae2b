"""Recipes that train self.hparams.X, which DDP does not wrap: replicas part; routed they do not. On real releases.

Other calls past a wrapper, and those that stay where they are, are in tests/late/test_bypass.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest

from tests.speechbrain import launch, tiny_recipe, tiny_runs
from tests.speechbrain.tiny_runs import Side, as_by_hand, by_hand, error, run, since

STEPS: List[List[tiny_runs.Micro]] = [[(0, 100)], [(1, 101)], [(2, 102)]] * 2
# These clip before the backward, when there is no gradient yet; speechbrain.clipping fixes that.
CLIPS_NOTHING = since("0.5.15", "1.0.0")
# It is told once, by the first rank.
SAID = "tiny_recipe.py:{} calls model without DDP, so its gradients would not be averaged"


def scenarios(folder: Path) -> List[launch.Scenario]:
    return [run(folder, "all", past="all", number_of_epochs=2, keep=False)]


unpatched, patched = tiny_runs.sides(lambda folder, ddpfix: scenarios(folder))


def test_unpatched_replicas_part_in_silence(unpatched: Side) -> None:
    where, runs = unpatched
    assert tiny_runs.well(runs["all"])
    first, second = runs["all"]
    assert len(first.steps) == len(STEPS) and first.steps[0] != second.steps[0]
    # Each rank has trained on its own batches alone.
    alone: List[List[tiny_runs.Micro]] = [[(batch[0][0],)] for batch in STEPS]
    assert error(where, "all", by_hand(alone, clip=float("inf") if CLIPS_NOTHING else 5.0)) < 1e-6


@pytest.mark.patches("speechbrain.bypass")
def test_patched_it_trains_as_through_the_wrapper(patched: Side) -> None:
    as_by_hand(patched, "all", STEPS)
    lines = tiny_recipe.SCRIPT.read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "return (self.hparams if" in text)
    first, second = patched[1]["all"]
    assert SAID.format(line) in first.log and "calls model without DDP" not in second.log
