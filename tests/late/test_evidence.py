"""What is gathered of the steps of a model before there is an error, and that nothing of it is left behind."""

from __future__ import annotations

import weakref
from typing import Any, Dict

import pytest
import torch
from ddpfix.patches.torch.diagnosis import explanation
from ddpfix.patches.torch.diagnosis.evidence import Evidence, _compiles
from ddpfix.patches.torch.pipeline import backward, ddp
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.parallel import DistributedDataParallel

import ddpfix
from tests.late.one_rank import Heads, alone, undone  # noqa: F401

pytestmark = pytest.mark.patches("torch.diagnosis")
CAN_ASK = hasattr(torch.distributed.Reducer, "_check_reducer_finalized")


def case_of(wrapper: Any) -> Evidence:
    stage: Any = next(stage for stage in ddp.stages() if stage.place == "diagnosis")
    found: Evidence = stage._cases[wrapper]
    return found


def backwards() -> backward.Backwards:
    stage: Any = next(stage for stage in ddp.stages() if stage.place == "diagnosis")
    found: backward.Backwards = stage._backwards
    return found


def hooks() -> int:
    return len(modules._global_forward_pre_hooks)


def test_torchs_own_backward_comes_back() -> None:
    original = torch.autograd.backward
    ddpfix.activate(log="off", unused="off")
    assert torch.autograd.backward is original, "no model is under DDP yet"
    model = DistributedDataParallel(Heads())
    assert torch.autograd.backward is not original
    model(torch.ones(1, 2))[0].sum().backward()
    told = backwards()
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
    evidence = case_of(model)
    assert (evidence.steps, evidence.missing, list(evidence._outputs)) == (0, [], [])
    assert not backwards().looking


@pytest.mark.skipif(not CAN_ASK, reason="the reducer cannot be asked before torch 2.1")
def test_a_loop_with_two_backwards_is_soon_left_alone() -> None:
    ddpfix.activate(log="off", unused="off")
    model = DistributedDataParallel(Heads())
    evidence = case_of(model)
    for step in range(4):
        first, second = model(torch.ones(1, 2))
        first.sum().backward()
        assert bool(evidence.missing) is (step < 2)
        second.sum().backward()
        assert not evidence.missing
    assert not evidence._asks


def test_an_output_is_not_kept_alive() -> None:
    ddpfix.activate(log="off", unused="off")
    model = DistributedDataParallel(Heads())
    output = model(torch.ones(1, 2))
    kept = weakref.ref(output[1])
    output[0].sum().backward()
    del output
    assert kept() is None


def test_an_error_of_another_kind_is_left_as_it_is() -> None:
    ddpfix.activate(log="off", unused="off")
    model = DistributedDataParallel(Heads())
    value = model(torch.ones(1, 2))[0].sum()
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
    assert ("DDPFIX_UNUSED=late" in explanation._without_edit(case_of(model))) is helps
