"""What a backward tells models, while another thread or the collector shortens the lists of them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, Callable, List

import pytest
import torch
from ddpfix.patches.torch.internals import probes, process_groups, reducer
from ddpfix.patches.torch.pipeline import step_count
from ddpfix.patches.torch.pipeline.backward import Backwards
from ddpfix.patches.torch.unused import states
from packaging.version import Version

from ddpfix.matrix import loader


class Model:
    """One that is to exchange something after a backward, and trains in a thread."""

    is_due = True

    def __init__(self, order: str, settled: List[str], asked: Callable[[], int] = threading.get_ident) -> None:
        self.model, self.number, self._settled, self._asked = self, order, settled, asked

    @property
    def thread(self) -> int:
        return self._asked()

    def settle(self) -> None:
        self._settled.append(self.number)


def test_a_model_of_another_thread_that_goes_meanwhile_hides_none_of_this_one() -> None:
    """Two threads that end their backwards at once: one rank would exchange what the other one has passed over."""
    settled: List[str] = []
    backwards = Backwards()

    def ends_now() -> int:
        if other in backwards._unsettled:
            backwards._unsettled.remove(other)
        return -1

    other = Model("other", settled, ends_now)
    for model in (other, Model("b", settled), Model("a", settled)):
        backwards.settle_after(model)
    backwards._settle()
    assert settled == ["a", "b"] and not backwards._unsettled


def test_a_reduction_that_goes_meanwhile_hides_no_other(monkeypatch: Any) -> None:
    class Waiting:
        def __init__(self) -> None:
            self.state = states.ARMED

    first, second = Waiting(), Waiting()
    known: List[Any] = []

    def going() -> Any:
        known.remove(going)

    known += [going, lambda: first, lambda: second]
    monkeypatch.setattr(states, "_ALL", known)
    assert states.reductions() == [first, second] and len(known) == 2
    known.insert(0, going)
    assert not states.all_finalized()
    states.discard(second)
    assert states.reductions() == [first]


class Wrapper:
    training = require_backward_grad_sync = True
    process_group = None


def test_training_forwards_are_counted_and_those_of_no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_groups, "ranks_of", lambda group: [0])
    monkeypatch.setattr(step_count, "trains", lambda wrapper: wrapper.training)
    wrapper: Any = Wrapper()
    clock = step_count.Clock(SimpleNamespace(wrapper=wrapper), step_count.Clocks())  # type: ignore[arg-type]
    for training, counted in ((False, (0, 0)), (True, (2, 1))):
        wrapper.training = training
        for _ in range(2):
            clock.begin()
        work = clock.work()
        assert (work.step, work.skipped) == counted
    wrapper.require_backward_grad_sync = False
    clock.begin()
    place = clock.local_place
    clock.begin()
    assert (clock.local, clock.local_place) == (2, place) and clock.is_local


# Probes of torch's compiled reducer say what the release does for which a fix was written, or does not.


# Only a release that is newer than all tested ones is asked; before 2.6 a process group is made in another way.
newer = pytest.mark.skipif(Version(torch.__version__) < Version("2.6"), reason="a probe asks newer releases")


@newer
def test_each_probe_agrees_with_the_rows_of_its_fix() -> None:
    here, whole = Version(torch.__version__), loader.load()
    asked = [patch for patch in whole.patches.values() if patch.probe]
    assert {patch.id for patch in asked} == {"torch.finalize"}
    for patch in asked:
        (row,) = [row for row in whole.rows_of(patch.id) if row.versions.holds(here)]
        said = getattr(probes, patch.probe.partition(":")[2])()
        assert said == (row.status == "cured"), patch.id


@newer
def test_a_reducer_that_keeps_waiting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducer, "mark_ready", lambda *given: None)
    assert not probes.marks_what_is_missing()


def test_a_program_that_wants_all_warnings_has_none_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "is_warn_always_enabled", lambda: True)
    monkeypatch.setattr(torch.distributed, "Reducer", None)
    reducer.use_up_flag_warning(None)


@newer
def test_a_probe_needs_no_default_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert probes.marks_what_is_missing()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(state, torch.get_rng_state()) and not torch.distributed.is_initialized()
