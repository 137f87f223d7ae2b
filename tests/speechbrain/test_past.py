"""Recipes that train self.hparams.X, which DDP does not wrap: replicas part; routed they do not. On real releases."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Dict, List, Tuple

import pytest

from tests.speechbrain import launch, tiny_runs
from tests.speechbrain.tiny_runs import by_hand, error, run, since

Runs = Dict[str, List[launch.Result]]
STEPS: List[List[tiny_runs.Micro]] = [[(0, 100)], [(1, 101)], [(2, 102)]] * 2
# It is told once, by the first rank.
SAID = "tiny_recipe.py:{} calls the module model past DistributedDataParallel"
# As a user has to type it there, where ddpfix does not read the command line.
BY_HAND = ["--device=cpu", "--distributed_backend=gloo", "--distributed_launch=True", "--local_rank=RANK"]
QUICK = """
import sys
ours = sys.modules.get("ddpfix.patches.common.past")
if ours is not None:
    ours._LIMIT = 1.0
"""


def scenarios(folder: Path, ddpfix: bool) -> List[launch.Scenario]:
    plans = [
        run(folder, "all", past="all", number_of_epochs=2, keep=False),
        run(folder, "main", past="main", number_of_epochs=2, keep=False, before=QUICK),
    ]
    if ddpfix:
        plans.append(run(folder, "off", past="all", number_of_epochs=2, keep=False, settings={"past_wrapper": "off"}))
    elif not since("0.5.5"):
        plans = [dataclasses.replace(plan, options=[*plan.options, *BY_HAND], bare=True) for plan in plans]
    return plans


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("past")


@pytest.fixture(scope="module")
def unpatched(folder: Path) -> Tuple[Path, Runs]:
    where = folder / "unpatched"
    return where, launch.train(scenarios(where, False), where, ddpfix=False)


@pytest.fixture(scope="module")
def patched(folder: Path) -> Tuple[Path, Runs]:
    where = folder / "patched"
    return where, launch.train(scenarios(where, True), where, ddpfix=True)


def test_unpatched_replicas_part_in_silence(unpatched: Tuple[Path, Runs]) -> None:
    where, runs = unpatched
    assert tiny_runs.well(runs["all"])
    first, second = runs["all"]
    assert len(first.steps) == len(STEPS) and first.steps[0] != second.steps[0]
    # Each rank has trained on its own batches alone.
    alone: List[List[tiny_runs.Micro]] = [[(batch[0][0],)] for batch in STEPS]
    assert error(where, "all", by_hand(alone)) < 1e-6


@pytest.mark.patches("speechbrain.past")
def test_patched_it_trains_as_through_the_wrapper(patched: Tuple[Path, Runs]) -> None:
    where, runs = patched
    assert tiny_runs.alike(runs["all"])
    assert max(error(where, "all", by_hand(STEPS), rank) for rank in (0, 1)) < 1e-6
    line = next(number for number, text in enumerate(_recipe(), 1) if "return (self.hparams if" in text)
    assert SAID.format(line) in runs["all"][0].log and "past DistributedDataParallel" not in runs["all"][1].log


@pytest.mark.patches("speechbrain.past")
def test_what_the_main_process_alone_looks_at_stays_there(
    patched: Tuple[Path, Runs], unpatched: Tuple[Path, Runs]
) -> None:
    assert tiny_runs.alike(patched[1]["main"]) and tiny_runs.alike(unpatched[1]["main"])
    assert patched[1]["main"][0].steps == unpatched[1]["main"][0].steps
    assert "not on all ranks" in patched[1]["main"][0].log


@pytest.mark.patches("speechbrain.past")
def test_off_is_as_unpatched(patched: Tuple[Path, Runs], unpatched: Tuple[Path, Runs]) -> None:
    assert [one.steps for one in patched[1]["off"]] == [one.steps for one in unpatched[1]["all"]]


def _recipe() -> List[str]:
    from tests.speechbrain import tiny_recipe

    return tiny_recipe.SCRIPT.read_text().splitlines()
