"""A model has hooks on its outputs alone until a step leaves a parameter out; backwards past them are noticed."""

from __future__ import annotations

import logging
from typing import Any, List, Tuple

import pytest
import torch
from ddpfix.patches.torch.internals import reducer
from ddpfix.patches.torch.pipeline import ddp
from ddpfix.patches.torch.unused.arrivals import Arrivals
from ddpfix.patches.torch.unused.states import REDUCTION
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ddpfix
from tests.late.one_rank import Heads, alone, undone  # noqa: F401

# So many steps are more than its first ones.
STEPS = 3
pytestmark = [
    pytest.mark.patches("torch.finalize"),
    pytest.mark.skipif(not reducer.AT_ANY_TIME, reason="before torch 2.1 nobody can ask DDP at the end of a backward"),
]


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> List[Arrivals]:
    """One for each time that hooks are put on parameters."""
    found: List[Arrivals] = []
    resume = Arrivals.resume

    def noted(arrivals: Arrivals) -> None:
        found.append(arrivals)
        resume(arrivals)

    monkeypatch.setattr(Arrivals, "resume", noted)
    return found


def reduction_of(model: Any) -> Any:
    found = REDUCTION.of(ddp.of(model))  # type: ignore[arg-type]
    assert found is not None
    return found


def trained() -> Tuple[Any, Any]:
    """Two heads under DDP and ddpfix, which have both been used in several steps."""
    ddpfix.activate(log="off")
    model = DistributedDataParallel(Heads())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS + 3):
        step(model, optimizer, [0, 1])
    return model, optimizer


def step(model: Any, optimizer: Any, heads: List[int]) -> None:
    optimizer.zero_grad()
    outputs = model(torch.ones(1, 2))
    sum(outputs[head].sum() for head in heads).backward()
    optimizer.step()


def test_parameters_have_no_hooks_before_a_step_leaves_one_out(resumed: List[Arrivals]) -> None:
    model, optimizer = trained()
    assert reduction_of(model).state == "finalized" and not resumed
    step(model, optimizer, [0])
    assert resumed and all(p.grad is None for p in model.module.other.parameters())


class Kept(nn.Module):
    """Keeps its loss, so that no backward passes an output."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.used = Heads(), [0, 1]

    def forward(self, batch: Any) -> None:
        outputs = self.heads(batch)
        self.loss = sum(outputs[head].sum() for head in self.used)


def test_a_backward_that_passes_no_output_is_noticed() -> None:
    """Also one that leaves parameters out, and the steps after it."""
    ddpfix.activate(log="off")
    model = DistributedDataParallel(Kept())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reduction = reduction_of(model)
    for count in range(2 * STEPS):
        model.module.used = [0] if count == STEPS else [0, 1]
        optimizer.zero_grad()
        model(torch.ones(1, 2))
        model.module.loss.backward()
        assert (reduction.state, reduction.reductions) == ("finalized", count + 1)
        optimizer.step()


class Checkpointed(nn.Module):
    """All of its parameters are within a reentrant checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, batch: Any) -> Any:
        return checkpoint(self.layer, batch, use_reentrant=True)


def test_a_reentrant_checkpoint_needs_no_hooks_on_parameters(resumed: List[Arrivals]) -> None:
    """They are seen in its first steps only; later a parameter that was written to shows that gradients have come."""
    ddpfix.activate(log="off")
    model = DistributedDataParallel(Checkpointed())
    reduction = reduction_of(model)
    for count in range(3 * STEPS):
        model.zero_grad()
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
        assert (reduction.state, reduction.reductions) == ("finalized", count + 1)
    assert len(resumed) == 1 and not reduction.arrivals.on


class Counted(torch.overrides.TorchFunctionMode):
    """The names of torch's functions that a program calls, as it sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: List[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__qualname__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("models", [1, 2])
def test_a_mode_counts_the_programs_calls_alone_in_each_step(models: int) -> None:
    """From the first step on, and where another model is trained as well."""
    original = DistributedDataParallel.forward

    def trained_under_a_mode() -> List[str]:
        every = [DistributedDataParallel(Heads()) for _ in range(models)]
        with Counted() as counted:
            for _ in range(2 * STEPS):
                for model in every:
                    model.zero_grad()
                    one, other = model(torch.ones(1, 2))
                    (one.sum() + other.sum()).backward()
            return list(counted.names)

    expected = trained_under_a_mode()
    ddpfix.activate(log="off")
    assert DistributedDataParallel.forward is not original
    assert trained_under_a_mode() == expected


def heard(monkeypatch: pytest.MonkeyPatch) -> Tuple[Any, Any]:
    """Two heads under DDP and ddpfix, whose lines are kept."""
    ddpfix.activate(log="info")
    monkeypatch.setattr(logging.getLogger("ddpfix"), "propagate", True)
    model = DistributedDataParallel(Heads())
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


REPORTED = "2 parameters of Heads (other) got no gradient in a backward"


@pytest.mark.parametrize("number", [1, STEPS - 1, STEPS, STEPS + 1, STEPS + 4])
def test_a_single_step_that_leaves_a_parameter_out_is_reported(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Whether it is one of the first steps or a later one."""
    model, optimizer = heard(monkeypatch)
    for count in range(1, STEPS + 8):
        step(model, optimizer, [0] if count == number else [0, 1])
    assert REPORTED in caplog.text


def test_a_second_backward_of_fewer_parameters_leaves_none_out(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, resumed: List[Arrivals]
) -> None:
    model, optimizer = heard(monkeypatch)
    for count in range(1, STEPS + 8):
        optimizer.zero_grad()
        one, other = model(torch.ones(1, 2))
        (one.sum() + other.sum()).backward(retain_graph=True)
        if count > STEPS + 2:
            one.sum().backward()
        optimizer.step()
    # It is noticed, and reduced as well.
    assert resumed
    assert "got no gradient" not in caplog.text
