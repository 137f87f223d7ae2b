"""Autograd's engine in a thread of its own, as on every accelerator: programs keep the law, and decisions are repeated.

``pytest --threads tests/late`` runs all programs and checkpoints this way.
"""

from __future__ import annotations

import threading
from typing import Dict, List

import pytest
import torch

from tests.late import launch
from tests.late.launch import Scenario, both, comparison
from tests.late.loops import kinds
from tests.late.loops import launch as loops
from tests.late.loops.launch import Ranks
from tests.late.loops.loop import MODES, SETTINGS
from tests.late.loops.test_loops import closeness
from tests.late.loops.verdict import broken, verdict
from tests.late.test_meaning import LAYERS
from tests.support import off_main_thread

pytestmark = pytest.mark.patches("torch.finalize", "torch.reentrant")
# What goes through hooks, callbacks, nested backwards and checkpoints.
PROGRAMS = (
    "bucket_views_skipping",
    "fgsm_backward_of_inputs",
    "reentrant_accumulating_skipping",
    "checkpoint_around_non_reentrant",
    "two_forwards_two_backwards",
    "second_backward_on_one_rank",
    "repeated_then_twice",
)
KINDS = kinds.load()
CHECKPOINTS = ("", *(f"layers-{kind}" for kind in LAYERS), "encoder-reentrant", "encoder-other")


def test_hooks_run_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for holder, name in off_main_thread.places():
        monkeypatch.setattr(holder, name, getattr(holder, name))
    seen: List[str] = []
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda gradient: seen.append(threading.current_thread().name))
    tensor.sum().backward()
    off_main_thread.put()
    tensor.sum().backward()
    assert seen[0] == threading.current_thread().name != seen[1]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    return loops.train(loops.scenarios(PROGRAMS, MODES, [2], threads=True), tmp_path_factory.mktemp("threads"))


@pytest.mark.parametrize("mode", SETTINGS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_ddpfix_keeps_the_law(programs: Dict[str, Ranks], name: str, mode: str) -> None:
    kind, runs = KINDS[name], {each: programs[f"{name}-{each}-2"] for each in MODES}
    plain, ours = (verdict(runs[each], runs["hand"], closeness(kind, 2)) for each in ("plain", mode))
    why = broken(kind, plain, ours, runs[mode], runs["plain"], runs["hand"], 2)
    assert not why, "\n".join([why, *(log[-3000:] for log, _ in runs[mode])])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    plans = [
        Scenario(f"{mode}-{kind}", comparison=comparison(checkpointing=kind), settings={"unused": mode}, threads=True)
        for kind in CHECKPOINTS
        for mode in ("auto", "late")
    ]
    plans.append(Scenario("here", comparison=comparison(), settings={"unused": "auto"}))
    return launch.train(plans, tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.parametrize("mode", ["auto", "late"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_parameters_are_those_of_the_main_thread(checkpoints: Dict[str, Ranks], kind: str, mode: str) -> None:
    for one, other in zip(both(checkpoints, "here"), both(checkpoints, f"{mode}-{kind}")):
        assert one["steps"] == other["steps"] and one["none"] == other["none"]
