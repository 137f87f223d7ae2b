"""Autograd's engine in a thread of its own, as on every accelerator: programs keep the law, and decisions are repeated.

``pytest --threads tests/late`` runs all programs and checkpoints this way.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Dict, List

import pytest
import torch

from tests.late.launch import Ranks, Scenario, both
from tests.late.loops.loop import SETTINGS
from tests.late.loops.test_loops import Table, keeps_the_law
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
def programs(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return Table(tmp_path_factory.mktemp("threads"), threads=True)


@pytest.mark.parametrize("mode", SETTINGS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_ddpfix_keeps_the_law(programs: Table, name: str, mode: str) -> None:
    keeps_the_law(name, programs[name, 2], mode, 2)


def plans(folder: Path) -> List[Scenario]:
    plans = [
        Scenario(f"{mode}-{kind}", "compared:train", {"checkpointing": kind}, {"unused": mode}, threads=True)
        for kind in CHECKPOINTS
        for mode in ("auto", "late")
    ]
    return [*plans, Scenario("here", "compared:train", settings={"unused": "auto"})]


@pytest.mark.parametrize("mode", ["auto", "late"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_parameters_are_those_of_the_main_thread(outcomes: Dict[str, Ranks], kind: str, mode: str) -> None:
    for one, other in zip(both(outcomes, "here"), both(outcomes, f"{mode}-{kind}")):
        assert one["steps"] == other["steps"] and one["none"] == other["none"]
