"""Encoders in a user's own file, one by one; tests/skipping and the programs of tests/harm that draw have ranks."""

from __future__ import annotations

import random
from types import FunctionType
from typing import Any, List, Tuple

import pytest
import torch
from torch import nn

from ddpfix.layerdrop import cover, everywhere, training
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site
from tests.skipping import built
from tests.skipping.shapes import Block, Encoder

pytestmark = pytest.mark.patches("torch.flag", "transformers.layerdrop")
SHARE = everywhere.share


class Gain(Encoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * random.uniform(0.8, 1.2) + torch.empty(4).uniform_()
        for layer in self.layers:
            if self.training and random.random() < self.rate:
                continue
            x = torch.tanh(layer(x))
        return x


class Twice(Encoder):
    """Its layers have two turns in a forward, and each turn a decision of its own."""

    noted: List[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            for layer in self.layers:
                if self.training and random.random() < self.rate:
                    continue
                self.noted.append(layer)
                x = torch.tanh(layer(x))
        return x


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


@pytest.mark.parametrize(
    ("kinds", "shared"), [((Block,) * 3, True), ((Block,), False), ((Block, nn.Dropout, Block), False)]
)
def test_a_module_that_draws_for_itself_is_a_layer_among_others_of_its_class(
    site: Site, kinds: Tuple[type, ...], shared: bool
) -> None:
    everywhere.in_models(site, SHARE)
    model = nn.Sequential(nn.Sequential(*(kind() for kind in kinds)), nn.Linear(4, 4)).train()
    wrap_hooks.run_before_wrap(model)
    assert (Block in cover.COVERED) is shared and bool(cover.active(model)) is shared
    patterns = []
    for seed in (1, 2):
        built.seed(seed)
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


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.layerdrop = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and float(torch.rand(1).item()) < self.layerdrop:
            return x
        return torch.tanh(self.linear(x))


@pytest.mark.patches("transformers.layerdrop")
def test_names_are_looked_up_where_the_source_is(site: Site) -> None:
    cover.cover(site, Scripted)
    encoder, x = Scripted().eval(), torch.ones(1, 2)
    assert torch.equal(torch.jit.script(encoder)(x), encoder(x))
