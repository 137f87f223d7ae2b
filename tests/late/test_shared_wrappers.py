"""What several patches share in the pipeline stays as long as one of them needs it, and is one thing for all."""

from __future__ import annotations

import threading
import weakref
from types import SimpleNamespace
from typing import Any, Dict, List, cast

import pytest
import torch
from ddpfix.patches.torch.diagnosis import explanation
from ddpfix.patches.torch.diagnosis.evidence import _compiles
from ddpfix.patches.torch.internals import autograd, reducer
from ddpfix.patches.torch.pipeline import backward, ddp
from ddpfix.patches.torch.pipeline.optimizers import Steps
from ddpfix.patches.torch.pipeline.order import Shared
from ddpfix.patches.torch.unused import accumulation, skipped_layers
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.utils.checkpoint import checkpoint

import ddpfix
from ddpfix import devices
from ddpfix.patching.site import PatchError, Site
from tests.late.one_rank import Heads, alone, undone  # noqa: F401

pytestmark = pytest.mark.patches("torch.finalize", "torch.diagnosis", "torch.reentrant")


def diagnosis() -> Any:
    """The stage that gathers what an error is explained by."""
    return next(stage for stage in ddp.stages() if stage.place == "diagnosis")


@pytest.fixture
def watched() -> Any:
    """A model whose steps are looked at."""
    ddpfix.activate(log="off", unused="off")
    return DistributedDataParallel(Heads())


class Behind(nn.Module):
    """A layer behind a reentrant checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Any, frozen: bool = False) -> Any:
        h = self.first(x).detach() if frozen else self.first(x)
        return checkpoint(self.layer, h, use_reentrant=True)


@pytest.mark.parametrize("settings", [{}, {"torch_reentrant": "0"}])
def test_checkpoints_are_counted_whichever_patch_is_off(settings: Dict[str, Any]) -> None:
    original = vars(torch.utils.checkpoint.CheckpointFunction).get("apply")
    ddpfix.activate(log="off", **settings)
    before = autograd.ENGINE.checkpoints
    Behind()(torch.ones(1, 2)).sum().backward()
    assert autograd.ENGINE.checkpoints > before
    assert ddpfix.deactivate() == []
    assert vars(torch.utils.checkpoint.CheckpointFunction).get("apply") is original


class Seen:
    """Counts the errors of backwards."""

    def __init__(self) -> None:
        self.errors: List[str] = []

    def backward_ended(self, roots: Any) -> None:
        raise NotImplementedError

    def backward_failed(self, error: BaseException, roots: Any) -> None:
        self.errors.append(str(error))


@pytest.mark.skipif(not autograd.TELLS, reason="before torch 2.1 the engine does not tell whether it runs in a thread")
def test_a_backward_in_a_thread_is_noticed_while_another_one_runs() -> None:
    site, seen = Site("a test"), Seen()
    backwards = backward.Backwards()
    backwards.follow(site, "diagnosis")
    backwards.look_at(seen, looks=False)
    begun, ended = threading.Event(), threading.Event()

    def wait(gradient: Any) -> None:
        begun.set()
        assert ended.wait(20)

    first = torch.ones(1, requires_grad=True)
    first.register_hook(wait)
    thread = threading.Thread(target=lambda: (first * 2).backward())
    thread.start()
    try:
        assert begun.wait(20)
        with pytest.raises(RuntimeError):
            torch.ones(2, requires_grad=True).mul(2).backward()
    finally:
        ended.set()
        thread.join()
        assert site.undo() == []
    assert len(seen.errors) == 1


def test_what_a_model_skips_is_followed_without_the_patch_before_torch_2_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipped_layers.cover, "may_skip", lambda module: True)
    monkeypatch.setattr(skipped_layers.ddp, "replica", lambda model: SimpleNamespace(last=None))
    ddpfix.activate(log="off", unused="off")
    wrapper = DistributedDataParallel(nn.Linear(2, 2))
    model = cast(Any, ddp.of(wrapper))
    skipped_layers.follow(model)
    followed = cast(Any, skipped_layers.SKIPPED.of(model))
    # What is taken out with the patch that holds decisions for a window.
    accumulation.Hold().ended(model)
    model.detach(accumulation.Hold.place)
    assert followed.forward_ended in model.after
    skipped_layers.leave(model)
    assert followed.forward_ended not in model.after and skipped_layers.SKIPPED.of(model) is None


def test_a_model_whose_reducer_is_made_anew_is_diagnosed_as_what_it_is() -> None:
    ddpfix.activate(log="off")
    wrapper = DistributedDataParallel(Heads(), find_unused_parameters=True)
    model = cast(Any, ddp.of(wrapper))
    stage = diagnosis()
    before = stage._cases[wrapper]
    assert before.forward_begins in model.before, "under the flag steps are looked at"
    wrapper.find_unused_parameters = False
    ddp.rebuild_stages(model)
    after = stage._cases[wrapper]
    assert after is not before
    assert after.forward_begins not in model.before, "finalized reductions leave nothing to look at"
    assert not stage._backwards.looking


def test_hooks_at_the_steps_of_optimizers_are_one_pair_in_a_written_order() -> None:
    before = len(optimizers._global_optimizer_pre_hooks)
    steps, called = Steps(), []  # type: ignore[var-annotated]
    steps.follow("finalize", lambda *_: called.append("finalize"), lambda *_: called.append("finalized"))
    steps.follow("trace", lambda *_: called.append("trace"), lambda *_: called.append("traced"))
    assert len(optimizers._global_optimizer_pre_hooks) == before + 1
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    torch.optim.SGD([parameter], lr=0.5).step()
    assert called == ["trace", "finalize", "traced", "finalized"]
    steps.leave("trace")
    steps.leave("finalize")
    steps.leave("finalize")
    assert len(optimizers._global_optimizer_pre_hooks) == before


def test_a_second_backward_under_the_flag_raises_where_a_checkpoint_was_made_another_one() -> None:
    """Plain torch ends the first backward; nothing may be added on each rank alone in its place."""
    plain = DistributedDataParallel(Behind(), find_unused_parameters=True)
    with pytest.raises(RuntimeError, match="mark a variable ready only once"):
        plain(torch.ones(1, 2)).sum().backward()
    ddpfix.activate(log="off")
    model = DistributedDataParallel(Behind(), find_unused_parameters=True)
    loss = model(torch.ones(1, 2)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="began after DDP had averaged"):
        loss.backward()
    # Every step is another one, and one of several micro-batches is none.
    model(torch.ones(1, 2)).sum().backward()
    with model.no_sync():
        for _ in range(2):
            loss = model(torch.ones(1, 2)).sum()
            loss.backward(retain_graph=True)
            loss.backward()
    model(torch.ones(1, 2)).sum().backward()
    assert ddpfix.deactivate() == []
    loss = model.module(torch.ones(1, 2)).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def test_a_checkpoint_that_trains_nothing_is_left_as_it_is() -> None:
    """torch's reentrant kind gives no gradient to parameters where no input needs one; the other kind would."""
    ddpfix.activate(log="off")
    model = DistributedDataParallel(Behind(), find_unused_parameters=True)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        output = model(torch.ones(1, 2), frozen=True)
    assert not output.requires_grad


def test_a_place_that_is_taken_or_in_no_order_is_refused() -> None:
    """A stage whose line in the order was forgotten would else be put in nowhere, in silence."""
    shared, off = Shared[str]("torch.thing", ("first", "second")), []  # type: ignore[var-annotated]
    site, other = Site("a test"), Site("another one")
    shared.join(site, "second", "two", lambda own: own.at_undo(lambda: off.append("taken off")))
    with pytest.raises(PatchError, match="the place third of torch.thing is none of first, second"):
        shared.join(site, "third", "three", lambda own: None)
    with pytest.raises(PatchError, match="the place second of torch.thing is taken"):
        shared.join(site, "second", "three", lambda own: None)
    shared.join(other, "first", "one", lambda own: None)
    assert shared.subscribers == ("one", "two")
    assert other.undo() == [] and shared.subscribers == ("two",) and off == []
    assert site.undo() == [] and shared.subscribers == () and off == ["taken off"]


# What is gathered of the steps of a model before there is an error, and that nothing of it is left behind.


def hooks() -> int:
    return len(modules._global_forward_pre_hooks)


def test_torchs_own_backward_comes_back() -> None:
    original = torch.autograd.backward
    ddpfix.activate(log="off", unused="off")
    assert torch.autograd.backward is original, "no model is under DDP yet"
    model = DistributedDataParallel(Heads())
    assert torch.autograd.backward is not original
    model(torch.ones(1, 2))[0].sum().backward()
    told = diagnosis()._backwards
    assert told.known and told.looking
    assert ddpfix.deactivate() == []
    assert torch.autograd.backward is original and hooks() == 0
    assert not told.known and not told.looking


def test_modules_are_noted_in_the_first_forwards_only() -> None:
    ddpfix.activate(log="off", unused="off")
    during = []

    class Watching(Heads):
        def forward(self, x: Any) -> Any:
            during.append(hooks())
            return super().forward(x)

    model = DistributedDataParallel(Watching())
    for _ in range(4):
        sum(model(torch.ones(1, 2))).sum().backward()  # type: ignore[union-attr]
        assert hooks() == 0
    noted = 0 if _compiles(nn.Linear(1, 1)) else 1
    assert during == [noted, noted, 0, 0]


def test_a_model_whose_reductions_are_finalized_gathers_nothing() -> None:
    ddpfix.activate(log="off")
    model = DistributedDataParallel(Heads())
    model(torch.ones(1, 2))[0].sum().backward()
    evidence = diagnosis()._cases[model]
    assert (evidence.steps, evidence.missing, list(evidence._outputs)) == (0, [], [])
    assert not diagnosis()._backwards.looking


@pytest.mark.skipif(not reducer.AT_ANY_TIME, reason="the reducer cannot be asked before torch 2.1")
def test_a_loop_with_two_backwards_is_soon_left_alone(watched: Any) -> None:
    evidence = diagnosis()._cases[watched]
    for step in range(4):
        first, second = watched(torch.ones(1, 2))
        first.sum().backward()
        assert bool(evidence.missing) is (step < 2)
        second.sum().backward()
        assert not evidence.missing
    assert not evidence._asks


def test_an_output_is_not_kept_alive(watched: Any) -> None:
    output = watched(torch.ones(1, 2))
    kept = weakref.ref(output[1])
    output[0].sum().backward()
    del output
    assert kept() is None


def test_an_error_of_another_kind_is_left_as_it_is(watched: Any) -> None:
    value = watched(torch.ones(1, 2))[0].sum()
    with pytest.raises(RuntimeError) as caught:
        value.backward(gradient=torch.ones(3))
    assert "ddpfix" not in str(caught.value)


@pytest.mark.parametrize(
    "unused, given, helps",
    [
        ("off", {}, True),
        # On already, or it would change nothing: a user's own True stays, and a static graph is left to torch.
        ("late", {}, False),
        ("off", {"find_unused_parameters": True}, False),
        ("off", {"static_graph": True}, False),
    ],
)
def test_the_setting_is_advised_where_it_helps(unused: Any, given: Dict[str, Any], helps: bool) -> None:
    ddpfix.activate(log="off", unused=unused)
    model = DistributedDataParallel(Heads(), **given)
    assert ("DDPFIX_UNUSED=late" in explanation._without_edit(diagnosis()._cases[model])) is helps


# Parameters that a step leaves out are marked at its start only where the outputs lie in one stream.


class Branches(Heads):
    """Two outputs, and a branch that no step takes."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(2, 2)


@pytest.mark.parametrize("names", [["default"], ["one", "other"]])
def test_no_mark_at_the_start_where_nothing_orders_it(names: List[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: List[Any] = []

    def current_stream(device: Any) -> str:
        asked.append(device)
        return names[len(asked) % len(names)]

    monkeypatch.setattr(devices, "current_stream", current_stream)
    ddpfix.activate(unused="late", log="off")
    events: List[str] = []
    before = reducer.mark_ready

    def mark_ready(of: Any, parameters: Any, indices: Any) -> None:
        if indices:
            events.append("mark")
        before(of, parameters, indices)

    monkeypatch.setattr(reducer, "mark_ready", mark_ready)
    model = DistributedDataParallel(Branches())
    model.module.one.weight.register_hook(lambda gradient: events.append("gradient"))
    for step in range(6):
        events.append(f"step {step}")
        one, other = model(torch.ones(1, 2))
        (one.sum() + other.sum()).backward()
        assert model.module.never.weight.grad is None and model.module.one.weight.grad is not None
        model.zero_grad(set_to_none=True)
    # In the first steps alone: it costs nothing later.
    assert len(asked) == 2
    last = events[events.index("step 5") :]
    # torch 2.0 allows no mark before a backward is over.
    at_start = len(names) == 1 and reducer.AT_ANY_TIME
    assert last == ["step 5", *(["mark", "gradient"] if at_start else ["gradient", "mark"])], events
