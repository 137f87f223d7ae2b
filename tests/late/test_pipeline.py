"""One pipeline for models under DDP: in one order, whatever the order of the matrix and which other ids are on."""

from __future__ import annotations

import gc
import logging
import sys
import time
import weakref
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import torch
from ddpfix.patches.torch.pipeline import ddp
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddpfix
from ddpfix import engine
from ddpfix.layerdrop import training
from ddpfix.patching.site import Site
from tests.late.one_rank import alone  # noqa: F401

STAGES = [
    "torch.agreement",
    "torch.flag",
    "torch.divergence",
    "torch.finalize",
    "torch.diagnosis",
    "torch.failures",
    "torch.trace",
]
if Version(torch.__version__) < Version("2.4"):
    STAGES.append("torch.accumulation")
if Version(torch.__version__) < Version("2.12"):
    STAGES.append("torch.buffers")


# The folders of traces that tests have been given.
TRACES: List[Path] = []


@pytest.fixture(autouse=True)
def undone(tmp_path: Path) -> Iterator[None]:
    TRACES.append(tmp_path / "trace")
    yield
    assert ddpfix.deactivate() == []


def put(order: List[str]) -> List[Site]:
    """Put the stages of some patches in, in an order of one's own."""
    # The folder is made when a model is wrapped.
    switches: Dict[str, Any] = {name.replace(".", "_"): "0" for name in STAGES}
    ddpfix.activate(log="off", trace=TRACES[-1], **switches)
    running = engine.current()
    assert running is not None
    sites = []
    for name in order:
        site = Site(name, running.settings, running)
        engine._code(running.matrix.patches[name].code)(site, torch.nn.parallel.distributed, DistributedDataParallel)
        assert site.changes(), name
        sites.append(site)
    return sites


def attached() -> Tuple[List[str], List[str]]:
    """What a model has, in the order in which it is called."""
    wrapper = DistributedDataParallel(nn.Linear(2, 2))
    model = ddp.of(wrapper)
    assert model is not None
    before, after = ([each.__qualname__ for each in some] for some in (model.before, model.after))  # type: ignore
    return before, after


def undo(sites: List[Site]) -> None:
    for site in sites:
        assert site.undo() == []


@pytest.mark.sampled(inside=False, cells=True)
@settings(max_examples=25, deadline=None)
@given(st.permutations(STAGES))
def test_any_order_of_the_matrix_gives_the_same_pipeline(order: List[str]) -> None:
    sites = put(order)
    before = attached()
    places = [stage.place for stage in ddp.stages()]
    undo(sites)
    ddpfix.deactivate()
    sites = put(STAGES)
    assert before == attached()
    assert places == [stage.place for stage in ddp.stages()] == sorted(places, key=ddp.ORDER.index)
    undo(sites)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_wrappers_go_with_the_last_stage(order: Tuple[int, ...]) -> None:
    before = {name: vars(DistributedDataParallel)[name] for name in ("__init__", "forward", "register_comm_hook")}
    sites = put(["torch.finalize", "torch.diagnosis", "torch.agreement"])
    for count, index in enumerate(order):
        assert vars(DistributedDataParallel)["forward"] is not before["forward"]
        # One layer each, however many stages there are.
        assert vars(DistributedDataParallel)["forward"].__wrapped__ is before["forward"]
        assert sites[index].undo() == []
        assert len(ddp.stages()) == 2 - count
    assert {name: vars(DistributedDataParallel)[name] for name in before} == before


@pytest.mark.parametrize("off", STAGES)
def test_a_patch_id_switches_its_own_stage_and_no_other(off: str) -> None:
    ddpfix.activate(log="off", trace=TRACES[-1])
    everything = [stage.place for stage in ddp.stages()]
    switches: Dict[str, Any] = {off.replace(".", "_"): "0"}
    ddpfix.activate(log="off", trace=TRACES[-1], **switches)
    rest = [stage.place for stage in ddp.stages()]
    # The clock of torch.failures is torch.divergence's as well.
    assert len(everything) - len(rest) == (off != "torch.failures")
    assert [place for place in everything if place in rest] == rest
    report = ddpfix.report()
    states = {entry.id: entry.state for entry in report.patches if entry.id in STAGES}
    assert states.pop(off) != "applied"
    assert set(states.values()) == {"applied"}


def test_the_flag_is_decided_without_the_agreement() -> None:
    """What looks at a model is called though ``torch.agreement`` is off."""
    from ddpfix.models import wrap_hooks

    seen: List[Any] = []
    ddpfix.activate(torch_agreement="0", log="off")
    hook = (wrap_hooks.BEFORE, seen.append)
    wrap_hooks.HOOKS.append(hook)
    try:
        model = DistributedDataParallel(nn.Linear(2, 2))
    finally:
        wrap_hooks.HOOKS.remove(hook)
    assert seen == [model.module]
    assert training.replica_of(model) is None


def test_a_model_leaves_nothing_behind() -> None:
    ddpfix.activate(log="off")
    inner = nn.Linear(2, 2)
    model = DistributedDataParallel(inner)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    known = weakref.ref(ddp.of(model))
    del model
    gc.collect()
    assert known() is None
    assert len(ddp.MODELS) == 0


def step(model: Any) -> None:
    model(torch.ones(1, 2)).sum().backward()


def calls_in_a_step(model: Any) -> int:
    """The function calls of a step, of Python and of C."""
    found: List[str] = []
    # Memory is collected whenever it has to be, which calls whatever it frees.
    gc.disable()
    sys.setprofile(lambda frame, event, argument: found.append(event))
    try:
        step(model)
    finally:
        sys.setprofile(None)
        gc.enable()
    return sum(event in ("call", "c_call") for event in found)


@pytest.mark.alone
def test_steps_leave_nothing_behind_and_take_no_longer() -> None:
    """16,000 steps of a model in which nothing is unused."""
    ddpfix.activate(log="off")
    model, fresh = (DistributedDataParallel(nn.Linear(2, 2)) for _ in range(2))

    def timed(model: Any, count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            step(model)
        return time.perf_counter() - begun

    for each in (model, fresh):
        timed(each, 500)
    gc.collect()
    calls, objects = calls_in_a_step(model), len(gc.get_objects())
    timed(model, 16000)
    gc.collect()
    assert len(gc.get_objects()) - objects < 20
    # What grows in the process shows in the calls of a step, what grows with the model in its time beside a fresh
    # one's: the two take turns, so that other work on the machine comes to both.
    assert calls_in_a_step(model) == calls
    assert median(timed(model, 50) / timed(fresh, 50) for _ in range(40)) < 1.1


def test_a_stage_that_fails_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    ddpfix.activate(log="warning")
    monkeypatch.setattr(logging.getLogger("ddpfix"), "propagate", True)
    monkeypatch.setattr(ddp.stages()[-1], "built", lambda *_: 1 / 0)
    model = DistributedDataParallel(nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    assert "is left to torch: ZeroDivisionError" in caplog.text
