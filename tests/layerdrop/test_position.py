"""Positions in random states: they come back as they were, and no generator draws another number for them."""

from __future__ import annotations

from typing import Any, Iterator, Tuple

import pytest
import torch
from ddpfix.patches.torch import resume
from torch import nn

from ddpfix.layerdrop import position
from ddpfix.layerdrop.position import Position, Positions
from ddpfix.layerdrop.training import Replica, step
from ddpfix.patching.site import Site

pytestmark = pytest.mark.patches("torch.steps")


@pytest.fixture(autouse=True)
def positions() -> Iterator[Positions]:
    made = Site("test")
    before = torch.random.get_rng_state
    resume.save(made, torch.random)
    resume.restore(made, torch.random)
    assert torch.get_rng_state is torch.random.get_rng_state is not before
    yield made.keep(Positions)
    made.undo()
    assert torch.get_rng_state is torch.random.get_rng_state is before


def trained(positions: Positions, steps: int, key: int = 7, start: Tuple[int, int] = (2**64 - 1, 0)) -> Any:
    """A model in the middle of its training; it is alive as long as what this returns."""
    model = nn.Linear(1, 1)
    replica = Replica(model, 0, lambda replica: start)
    positions.begun(key, 1, replica)
    for _ in range(steps):
        with step(replica) as one:
            one.stream(model)
    return replica


def plain() -> torch.Tensor:
    return torch.default_generator.get_state()


def test_this_torch_has_room() -> None:
    assert position.carries()


def test_no_number_depends_on_a_position(positions: Positions) -> None:
    torch.manual_seed(3)
    torch.randn(5)
    replica = trained(positions, 4)
    before, state = plain(), torch.get_rng_state()
    assert torch.equal(plain(), before) and not torch.equal(state, before)
    expected = torch.randn(3000)
    torch.set_rng_state(state)
    assert torch.equal(plain(), before)
    assert torch.equal(torch.randn(3000), expected)
    del replica


def test_a_position_comes_back(positions: Positions) -> None:
    torch.manual_seed(3)
    replicas = [trained(positions, 4), trained(positions, 9, key=8, start=(5, 100))]
    state = torch.get_rng_state()
    assert positions.restored(7, 1) is None
    torch.set_rng_state(state)
    assert positions.restored(7, 1) == Position(1, 2**64 - 1, 4)
    assert positions.restored(8, 1) == Position(1, 5, 109)
    # Another model, and a seed from another source.
    assert positions.restored(9, 1) is None and positions.restored(7, 2) is None
    # Seeded anew since.
    torch.manual_seed(4)
    assert positions.restored(7, 1) is None
    del replicas


def test_the_state_that_was_restored_last_counts(positions: Positions) -> None:
    torch.manual_seed(3)
    empty = torch.get_rng_state()
    assert torch.equal(empty, plain())
    replica = trained(positions, 4)
    state = torch.get_rng_state()
    del replica
    torch.set_rng_state(state)
    # What begins later keeps its position across a block with random numbers of its own.
    with torch.random.fork_rng():
        torch.manual_seed(9)
    assert positions.restored(7, 1) == Position(1, 2**64 - 1, 4)
    torch.set_rng_state(empty)
    assert positions.restored(7, 1) is None


def test_a_model_that_never_decided_leaves_no_trace(positions: Positions) -> None:
    replica = Replica(nn.Linear(1, 1), 5)
    positions.begun(7, 1, replica)
    with step(replica):
        pass
    assert torch.equal(torch.get_rng_state(), plain())


def test_bytes_of_others_are_no_positions(positions: Positions) -> None:
    replica = trained(positions, 4)
    state = torch.get_rng_state()
    state[24 + 8 * 7 + 4] += 1
    torch.set_rng_state(state)
    assert positions.restored(7, 1) is None
    with pytest.raises(RuntimeError):
        torch.set_rng_state(state[:-1])
    del replica


def test_more_models_than_there_is_room_for(positions: Positions) -> None:
    replicas = [trained(positions, 1, key=key) for key in range(200)]
    torch.set_rng_state(torch.get_rng_state())
    found = [positions.restored(key, 1) is not None for key in range(200)]
    assert 70 < sum(found) == found.index(False)
    del replicas


def test_a_torch_with_another_layout_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "_SIZE", 1)
    made, before = Site("other"), torch.random.get_rng_state
    resume.save(made, torch.random)
    resume.restore(made, torch.random)
    assert torch.random.get_rng_state is before and not made.changes()
