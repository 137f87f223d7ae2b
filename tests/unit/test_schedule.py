"""The schedule: a pure function of its key, and the same on every rank."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from ddpfix.exchange import keys as store
from ddpfix.exchange import rendezvous
from ddpfix.layerdrop import training
from ddpfix.layerdrop.training import Replica, fold, mix, text_key, uniform


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.decoder = nn.Linear(2, 2)


def test_the_order_and_the_number_of_parts_count() -> None:
    assert len({fold(1, 2), fold(2, 1), fold(1, 2, 0), fold(0, 1, 2), fold(1), fold(2)}) == 6
    assert fold(-1) == fold(2**64 - 1)


def test_the_numbers_never_change() -> None:
    """A change would change what a restarted job skips. Every splitmix64 begins with these three for this seed."""
    assert [mix((1234567 + (i + 1) * 0x9E3779B97F4A7C15) % 2**64) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    assert uniform(1234567, 0) == (6457827717110365317 >> 11) * 2.0**-53
    assert text_key("encoder") == 11527328553368671056
    assert fold(1, 2, 3, 4) == 3705391937491829246
    base = fold(42, 7, text_key("encoder"), 0)
    assert [uniform(base, layer) for layer in range(3)] == [0.20146985650712912, 0.7341826977385795, 0.6139746621638432]


# Replicas and steps.


def test_calls_are_counted_by_module_and_step_and_have_streams_of_their_own() -> None:
    model, streams = Model(), []
    replica = Replica(model, 5)
    for iteration in range(50):
        with training.step(replica) as step:
            assert step.iteration == iteration
            calls = [step.stream(module) for module in (model.encoder, model.decoder, model.encoder)]
            assert [call[1:] for call in calls] == [("encoder", 0), ("decoder", 0), ("encoder", 1)]
            streams += [call[0] for call in calls]
    assert len(set(streams)) == len(streams) == 150


class Wrapper(nn.Module):
    """Holds a module under the name that a wrapper of torch uses."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        setattr(self, name, inner)


@pytest.mark.parametrize("name", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "compiled"])
def test_a_module_has_one_name_in_whatever_wraps_it(name: str) -> None:
    plain, model = Model(), Model()
    inner = model.encoder
    whole: Any = torch.compile(model, backend="eager") if name == "compiled" else Wrapper(name, model)
    if name != "compiled":
        model.encoder = Wrapper(name, inner)  # type: ignore[assignment]
    replica = Replica(whole, 5)
    assert replica.key(inner) == Replica(plain, 5).key(plain.encoder) == ("encoder", text_key("encoder"))
    assert replica.key(inner[1])[0] == "encoder.1"
    # One that comes later is learnt, and one outside of the tree is named by its class and order.
    model.late = nn.Linear(1, 1)
    assert replica.key(model.late)[0] == "late"
    names = [Replica(Model(), 5).key(nn.Linear(1, 1))[0] for _ in range(2)]
    assert names[0] == names[1] and names[0].startswith("Linear#")


def test_skipped_layers_of_the_last_step() -> None:
    wrapper, model = Model(), Model()
    with pytest.raises(LookupError, match="not seen DDP or FSDP wrap this Model"):
        training.skipped_layers(wrapper)
    replica = training.register(wrapper, model, 5)
    assert training.replica_of(wrapper) is replica
    assert training.skipped_layers(wrapper) == []
    assert training.current() is None
    with training.step(replica) as step:
        assert training.current() is step and replica.last is step
        step.skipped.append(training.Skip("encoder", 0, 3))
    assert training.current() is None
    assert training.skipped_layers(wrapper) == [training.Skip("encoder", 0, 3)]
    assert training.skipped_layers(model) == training.skipped_layers(wrapper)
    training.skipped_layers(wrapper).clear()
    assert len(training.skipped_layers(wrapper)) == 1
    with pytest.raises(RuntimeError), training.step(replica):
        raise RuntimeError
    assert training.current() is None and replica.iteration == 1
    assert training.skipped_layers(wrapper) == []
    training.TRAINED.forget()
    assert training.replica_of(wrapper) is None


def test_models_are_not_kept_alive() -> None:
    wrapper, model = Model(), Model()
    training.register(wrapper, model, 5)
    with training.step(training.replica_of(wrapper)) as step:  # type: ignore[arg-type]
        step.stream(model.encoder)
    before = len(training.TRAINED.replicas)
    del wrapper, model, step
    gc.collect()
    assert len(training.TRAINED.replicas) == before - 1


def test_ranks_without_a_store_agree_on_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The MPI backend has none: a job that ran before has to run on."""
    monkeypatch.setattr(store, "group_store", lambda: None)
    assert rendezvous.meet(rendezvous.Members("all", [0, 1], 0), {}, 7, 1.0) is None
    assert rendezvous.meet(rendezvous.Members("all", [0], 0), {}, 7, 1.0) == 7
