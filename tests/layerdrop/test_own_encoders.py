"""Encoders in a user's own file: every draw but the one for a layer stays the program's own, and so does its value."""

from __future__ import annotations

import pickle
import random
from types import FunctionType
from typing import Any, Iterator, List, Tuple, Type

import numpy as np
import pytest
import torch
from torch import nn

from ddpfix.layerdrop import cover, everywhere, training
from ddpfix.layerdrop.code_copy import Traits
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site

pytestmark = pytest.mark.patches("torch.flag", "transformers.layerdrop")
SHARE = everywhere.sharing(Traits())


class Encoder(nn.Module):
    """What the encoders below have in common."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        self.noted: List[Any] = []


class Gain(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * random.uniform(0.8, 1.2) + torch.empty(4).uniform_()
        for layer in self.layers:
            if self.training and random.random() < self.rate:
                continue
            x = torch.tanh(layer(x))
        return x


class UsedAgain(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            draw = torch.rand(()).to(x.device)
            self.noted.append(pickle.loads(pickle.dumps(draw)))
            x = x + draw.expand(4)
            if self.training and draw.item() < self.rate:
                continue
            x = torch.tanh(layer(x))
        return x


class Percent(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            skip = self.training and np.random.uniform(0, 100) < 100 * self.rate
            self.noted.append(type(skip))
            if not skip:
                x = torch.tanh(layer(x))
        return x


class Survival(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        survival = 1 - self.rate
        for layer in self.layers:
            skip = torch.rand(1, dtype=torch.float64) > survival
            self.noted.append((type(skip), skip.shape, skip.dtype))
            if self.training and skip:
                continue
            x = torch.tanh(layer(x))
        return x


class Twice(Encoder):
    """Its layers have two turns in a forward, and each turn a decision of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            for layer in self.layers:
                if self.training and random.random() < self.rate:
                    continue
                self.noted.append(layer)
                x = torch.tanh(layer(x))
        return x


class Augmented(Encoder):
    """No layer is skipped: each rank has a coin of its own, for a module without parameters as well."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.noises = nn.ModuleList(nn.Dropout(0.5) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for noise in self.noises:
            if random.random() < self.rate:
                x = noise(x)
        return self.layers[0](x)


KINDS = (Gain, UsedAgain, Percent, Survival)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site("test")
    yield made
    made.undo()


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def trained(kind: Type[Encoder], rate: float, seed: int, steps: int = 40) -> Tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    model = kind(rate).train()
    wrap_hooks.run_before_wrap(model)
    replica, skips, outputs = training.Replica(model, 5), [], []
    seed_all(seed)
    for _ in range(steps):
        with training.step(replica) as step:
            outputs.append(model(torch.ones(2, 4)))
        skips.append([skip.layer for skip in step.skipped])
    state: Any = np.random.get_state()
    streams = torch.get_rng_state().tolist(), random.getstate(), state[1].tolist(), state[2]
    return torch.stack(outputs), skips, streams, model.noted


@pytest.mark.parametrize("kind", (*KINDS, Augmented))
def test_where_no_layer_is_skipped_all_is_as_without_ddpfix(site: Site, kind: Type[Encoder]) -> None:
    rate = 0.5 if kind is Augmented else 1e-9
    plain = trained(kind, rate, 1)
    everywhere.in_models(site, SHARE)
    ours = trained(kind, rate, 1)
    assert torch.equal(plain[0], ours[0]) and plain[1:] == ours[1:]
    assert (kind in cover.COVERED) is (kind is not Augmented) or not ours[1][0]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_skip_the_same_at_the_rate(site: Site, kind: Type[Encoder]) -> None:
    everywhere.in_models(site, SHARE)
    one, other = trained(kind, 0.2, 1, 400), trained(kind, 0.2, 2, 400)
    assert one[1] == other[1] and one[2] != other[2]
    assert 0.17 < sum(map(len, one[1])) / (6 * 400) < 0.23
    # A comparison gives what it gave: the same type, shape and dtype.
    assert len({str(kept) for kept in one[3]}) < 2 or kind is UsedAgain


def test_a_layer_that_ran_in_another_turn_was_not_skipped(site: Site) -> None:
    everywhere.in_models(site, SHARE)
    model = Twice(0.5).train()
    wrap_hooks.run_before_wrap(model)
    replica, found = training.Replica(model, 5), set()
    for _ in range(20):
        model.noted.clear()
        with training.step(replica) as step:
            model(torch.ones(2, 4))
        ran = {index for index, layer in enumerate(model.layers) if any(layer is each for each in model.noted)}
        assert not {skip.layer for skip in step.skipped} & ran
        found |= ran
    assert found == set(range(6))


def test_a_group_of_one_rank_draws_for_itself(site: Site) -> None:
    plain = trained(Percent, 0.3, 1)
    everywhere.in_models(site, SHARE)
    torch.manual_seed(0)
    model = Percent(0.3).train()
    wrap_hooks.run_before_wrap(model)
    replica = training.Replica(model, 5)
    replica.is_alone = True
    seed_all(1)
    for expected in plain[0]:
        with training.step(replica) as step:
            assert torch.equal(model(torch.ones(2, 4)), expected)
        assert all(0 <= skip.layer < 6 for skip in step.skipped)


class Block(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.inner = rate, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.rand(1).item() < self.rate:
            return x
        return torch.tanh(self.inner(x))


@pytest.mark.parametrize(("count", "shared"), [(3, True), (1, False)])
def test_a_module_that_draws_for_itself_is_a_layer_among_others_of_its_class(
    site: Site, count: int, shared: bool
) -> None:
    everywhere.in_models(site, SHARE)
    model = nn.Sequential(nn.Sequential(*(Block(0.5) for _ in range(count))), nn.Linear(4, 4)).train()
    wrap_hooks.run_before_wrap(model)
    assert (Block in cover.COVERED) is shared and bool(cover.active(model)) is shared
    patterns = []
    for seed in (1, 2):
        seed_all(seed)
        replica, skips = training.Replica(model, 5), []
        for _ in range(20):
            with training.step(replica) as step:
                model(torch.ones(2, 4))
            skips.append([skip.layer for skip in step.skipped])
        patterns.append(skips)
    assert patterns[0] == patterns[1] and any(patterns[0]) is shared


def test_a_covered_class_by_value_is_the_original(site: Site) -> None:
    """As cloudpickle does it for a class of ``__main__``: code, globals, closure; the rest by pickle."""
    everywhere.in_models(site, SHARE)
    wrap_hooks.run_before_wrap(Gain(0.5))
    forward = vars(Gain)["forward"]
    (run,) = (cell.cell_contents for cell in forward.__closure__)
    make, (original,) = run.__reduce__()
    assert make.__module__ == "copy" and make(original) is original is forward.__wrapped__
    assert "ddpfix" not in forward.__code__.co_filename and "ddpfix" not in str(forward.__code__.co_names)


def test_source_that_is_not_what_runs_is_left_alone_and_named(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Its code was changed since it was compiled, as by a macro or a tool for coverage."""
    constants = tuple(0.7 if value == 0.8 else value for value in Gain.forward.__code__.co_consts)
    changed = FunctionType(Gain.forward.__code__.replace(co_consts=constants), Gain.forward.__globals__)
    own = type("Own", (Encoder,), {"forward": changed})
    everywhere.in_models(site, SHARE)
    wrap_hooks.run_before_wrap(own(0.5))
    assert own not in cover.COVERED
    plain = FunctionType(Gain.forward.__code__, Gain.forward.__globals__)
    own = type("Own", (Encoder,), {"forward": plain})
    wrap_hooks.run_before_wrap(own(0.5))
    assert own in cover.COVERED
