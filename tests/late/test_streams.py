"""Parameters that a step leaves out are marked at its start only where the outputs lie in one stream."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List

import pytest
import torch
from ddpfix.patches.torch.internals import reducer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddpfix
from ddpfix import devices
from tests.late.one_rank import alone, undone  # noqa: F401

pytestmark = pytest.mark.patches("torch.finalize")


class Branches(nn.Module):
    """Two outputs, and a branch that no step takes."""

    def __init__(self, events: List[str]) -> None:
        super().__init__()
        self.one, self.other, self.never = (nn.Linear(2, 2) for _ in range(3))
        self.one.weight.register_hook(lambda gradient: events.append("gradient"))

    def forward(self, x: Any) -> Any:
        return self.one(x), self.other(x)


@contextlib.contextmanager
def marked(events: List[str]) -> Iterator[None]:
    """Note when parameters are marked."""
    before = reducer.mark_ready

    def mark_ready(of: Any, parameters: Any, indices: Any) -> None:
        if indices:
            events.append("mark")
        before(of, parameters, indices)

    reducer.mark_ready = mark_ready
    try:
        yield
    finally:
        reducer.mark_ready = before


@pytest.mark.parametrize("names", [["default"], ["one", "other"]])
def test_no_mark_at_the_start_where_nothing_orders_it(names: List[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: List[Any] = []

    def current_stream(device: Any) -> str:
        asked.append(device)
        return names[len(asked) % len(names)]

    monkeypatch.setattr(devices, "current_stream", current_stream)
    ddpfix.activate(unused="late", log="off")
    events: List[str] = []
    model = DistributedDataParallel(Branches(events))
    with marked(events):
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
