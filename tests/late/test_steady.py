"""A model whose steps repeat each other has no hooks; it has them again from the first step on that is another one."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any, List, Tuple

import pytest
import torch
from ddpfix.patches.torch.internals import reducer
from ddpfix.patches.torch.pipeline import ddp
from ddpfix.patches.torch.unused.finalizer import Finalizer
from ddpfix.patches.torch.unused.gradient_hooks import Arrivals
from ddpfix.patches.torch.unused.states import REDUCTION
from ddpfix.patches.torch.unused.steady import STEPS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddpfix
from tests.late.one_rank import Heads, alone, undone  # noqa: F401

pytestmark = [
    pytest.mark.patches("torch.finalize"),
    pytest.mark.skipif(not reducer.AT_ANY_TIME, reason="before torch 2.1 nobody can ask DDP at the end of a backward"),
]


class Calls:
    """Counts what is called of hooks.

    Attributes:
        outputs: gradients that came to outputs.
        resumed: how often hooks were put on parameters.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs, self.resumed = 0, 0
        reached, resume = Finalizer.output_reached, Arrivals.resume

        def counted(finalizer: Finalizer, gradients: Any) -> None:
            self.outputs += 1
            reached(finalizer, gradients)

        def resumed(arrivals: Arrivals) -> None:
            self.resumed += 1
            resume(arrivals)

        monkeypatch.setattr(Finalizer, "output_reached", counted)
        monkeypatch.setattr(Arrivals, "resume", resumed)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def trained() -> Tuple[Any, Any]:
    """Two heads under DDP and ddpfix, which have both been used in more steps than it takes."""
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


def test_steps_that_repeat_each_other_have_no_hooks(calls: Calls) -> None:
    model, _ = trained()
    assert calls.outputs == 2 * STEPS and not calls.resumed
    reduction = REDUCTION.of(ddp.of(model))  # type: ignore[arg-type]
    assert reduction is not None and reduction.state == "finalized"


def test_the_first_step_that_is_another_one_is_finalized_and_has_hooks_again(calls: Calls) -> None:
    model, optimizer = trained()
    before = calls.outputs
    step(model, optimizer, [0])
    assert calls.outputs == before and calls.resumed
    assert all(p.grad is None for p in model.module.other.parameters())
    step(model, optimizer, [0])
    assert calls.outputs == before + 1


class Counted(torch.overrides.TorchFunctionMode):
    """The names of torch's functions that a program calls, as it sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: List[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__qualname__", str(func)))
        return func(*args, **(kwargs or {}))


def test_a_gradient_that_was_read_through_a_mode_is_not_counted() -> None:
    """A program that counts calls of torch's functions finds none of ours."""
    model, optimizer = trained()
    with Counted() as ours:
        step(model, optimizer, [0, 1])
    ddpfix.deactivate()
    with Counted() as plain:
        step(model, optimizer, [0, 1])
    assert ours.names == plain.names


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


REPORTED = "2 parameters of Heads (other) got no gradient in a backward"


@pytest.mark.parametrize("number", [1, STEPS - 1, STEPS, STEPS + 1, STEPS + 4])
def test_a_single_step_that_leaves_a_parameter_out_is_reported(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Whether it is one of the first steps, or one of those that are checked at the end of backward alone."""
    ddpfix.activate(log="info")
    monkeypatch.setattr(logging.getLogger("ddpfix"), "propagate", True)
    model = DistributedDataParallel(Heads())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for count in range(1, STEPS + 8):
        step(model, optimizer, [0] if count == number else [0, 1])
    assert REPORTED in caplog.text


def test_a_second_backward_of_fewer_parameters_leaves_none_out(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, calls: Calls
) -> None:
    ddpfix.activate(log="info")
    monkeypatch.setattr(logging.getLogger("ddpfix"), "propagate", True)
    model = DistributedDataParallel(Heads())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for count in range(1, STEPS + 8):
        optimizer.zero_grad()
        one, other = model(torch.ones(1, 2))
        (one.sum() + other.sum()).backward(retain_graph=True)
        if count > STEPS + 2:
            one.sum().backward()
        optimizer.step()
    # It is noticed, and reduced as well.
    assert calls.outputs > 2 * STEPS and calls.resumed
    assert "got no gradient" not in caplog.text


def test_another_model_brings_the_hooks_back(calls: Calls) -> None:
    model, optimizer = trained()
    before = calls.outputs
    other = DistributedDataParallel(nn.Linear(2, 2))
    step(model, optimizer, [0, 1])
    assert calls.outputs > before and other is not None


def test_undone_in_between_it_trains_as_in_plain_torch() -> None:
    original = torch.autograd.backward
    model, optimizer = trained()
    output = model(torch.ones(1, 2))
    assert ddpfix.deactivate() == []
    assert torch.autograd.backward is original
    sum(each.sum() for each in output).backward()
    step(model, optimizer, [0, 1])


def test_the_model_is_freed() -> None:
    model, optimizer = trained()
    freed = weakref.ref(model.module.one.weight)
    del model, optimizer
    gc.collect()
    assert freed() is None
