"""Recipes that train self.hparams.X, which DDP does not wrap: replicas part; routed they do not. On real releases."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.speechbrain import launch, parts_recipe, tiny_runs
from tests.speechbrain.tiny_runs import Runs, Side, by_hand, error, run, since

STEPS: List[List[tiny_runs.Micro]] = [[(0, 100)], [(1, 101)], [(2, 102)]] * 2
# These clip before the backward, when there is no gradient yet; speechbrain.clipping fixes that.
CLIPS_NOTHING = since("0.5.15", "1.0.0")
OFF: Dict[str, Any] = {"settings": {"bypass": "off"}, "environ": {"DDPFIX_SPEECHBRAIN_CLIPPING": "0"}}
# It is told once, by the first rank.
SAID = "tiny_recipe.py:{} calls the module model past DistributedDataParallel"
QUICK = """
import sys
ours = sys.modules.get("ddpfix.patches.common.bypass")
if ours is not None:
    ours._LIMIT = 1.0
"""


def parts(folder: Path, name: str, **changes: Any) -> launch.Scenario:
    """One run of the recipe of several modules."""
    file = folder / "parts.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(parts_recipe.YAML)
    return dataclasses.replace(run(folder, name, **changes), yaml=file, script=parts_recipe.SCRIPT)


def edited(plan: launch.Scenario) -> launch.Scenario:
    """The same with the calls mended by hand."""
    return dataclasses.replace(plan, name=f"edited_{plan.name}", options=[*plan.options, "--through=modules"])


def scenarios(folder: Path, ddpfix: bool) -> List[launch.Scenario]:
    plans = [
        run(folder, "all", past="all", number_of_epochs=2, keep=False),
        run(folder, "main", past="main", number_of_epochs=2, keep=False, before=QUICK),
        parts(folder, "parts"),
    ]
    plans += [parts(folder, "accumulated", grad_accumulation_factor=2)] if since("1.0.0") else []
    if ddpfix:
        plans.append(run(folder, "off", past="all", number_of_epochs=2, keep=False, **OFF))
        return plans
    plans += [edited(plan) for plan in plans[2:]]
    return plans


unpatched, patched = tiny_runs.sides(scenarios)


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
    where, runs = patched
    assert tiny_runs.alike(runs["all"])
    assert max(error(where, "all", by_hand(STEPS), rank) for rank in (0, 1)) < 1e-6
    line = next(number for number, text in enumerate(_recipe(), 1) if "return (self.hparams if" in text)
    assert SAID.format(line) in runs["all"][0].log and "past DistributedDataParallel" not in runs["all"][1].log


@pytest.mark.patches("speechbrain.bypass")
def test_what_the_main_process_alone_looks_at_stays_there(patched: Side, unpatched: Side) -> None:
    assert tiny_runs.alike(patched[1]["main"]) and tiny_runs.alike(unpatched[1]["main"])
    assert patched[1]["main"][0].steps == unpatched[1]["main"][0].steps
    assert "not on all ranks" in patched[1]["main"][0].log


@pytest.mark.parametrize("name", ["parts", "accumulated"])
def test_unpatched_replicas_of_several_modules_part(unpatched: Side, name: str) -> None:
    first, second = known(unpatched[1], name)
    assert tiny_runs.well([first, second]) and first.steps[0] != second.steps[0]


@pytest.mark.patches("speechbrain.bypass")
@pytest.mark.parametrize("name", ["parts", "accumulated"])
def test_several_modules_are_trained_as_mended_by_hand(patched: Side, unpatched: Side, name: str) -> None:
    routed, mended = known(patched[1], name), unpatched[1][f"edited_{name}"]
    assert tiny_runs.alike(routed) and tiny_runs.alike(mended) and routed[0].steps == mended[0].steps
    for part in parts_recipe.PARTS:
        assert routed[0].log.count(f"calls the module {part} past DistributedDataParallel") == 1
    # What is evaluated, searched or not trained any more stays where it is.
    assert not any("not on all ranks" in rank.log for rank in routed)


@pytest.mark.patches("speechbrain.bypass")
def test_off_is_as_unpatched(patched: Side, unpatched: Side) -> None:
    assert [one.steps for one in patched[1]["off"]] == [one.steps for one in unpatched[1]["all"]]


def known(runs: Runs, name: str) -> List[launch.Result]:
    if name not in runs:
        pytest.skip("this release has no accumulation that works under DDP")
    return runs[name]


def _recipe() -> List[str]:
    from tests.speechbrain import tiny_recipe

    return tiny_recipe.SCRIPT.read_text().splitlines()
