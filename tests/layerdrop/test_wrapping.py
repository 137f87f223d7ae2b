"""Wrapping a model: the user's own classes are covered, unread rates are named, checkpointing is checked."""

from __future__ import annotations

import copy
import importlib
import random
import subprocess
import sys
from typing import Any, List, Set

import pytest
import torch
import transformers
from ddpfix.patches.common import layerdrop
from ddpfix.patches.transformers import checkpointing, overrides
from packaging.version import Version
from torch import nn

from ddpfix import log
from ddpfix.layerdrop import cover, training
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site
from tests.ranks.own import OwnSource
from tests.skipping.shapes import CountedList
from tests.support import zoo

RELEASE = Version(transformers.__version__)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    logged: List[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(log, level, logged.append)
    return logged


class OwnStack(nn.Module):
    """A stack as remote code or a user would write it: copied from no release, with a rate of its own."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.layerdrop = rate
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.training and random.random() < self.layerdrop:
                continue
            states = block(states)
        return states


class Computed(OwnStack):
    """Has a forward of its own, whose rate is computed, above one that is shared."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.training and random.random() > 1 - self.layerdrop:
                continue
            states = block(states)
        return states


def wrapped(site: Site, model: nn.Module) -> None:
    """Run all wrap hooks on a model."""
    layerdrop.at_wrap(site, importlib.import_module("torch.nn.parallel.distributed"), nn.Module)
    wrap_hooks.run_before_wrap(model)


def patterns(model: nn.Module, seed: int, count: int = 12) -> List[Any]:
    skipped = []
    replica = training.Replica(model, seed)
    for _ in range(count):
        with training.step(replica) as step:
            model(torch.ones(1, 4))
        skipped.append([(skip.module, skip.layer) for skip in step.skipped])
    return skipped


@pytest.mark.patches("torch.flag")
def test_a_users_own_class_is_found_when_it_is_wrapped(site: Site) -> None:
    model = nn.Sequential(OwnStack(0.5), OwnStack(0.3)).train()
    wrapped(site, model)
    assert OwnStack in cover.COVERED
    random.seed(1)
    first = patterns(model, seed=5)
    random.seed(2)
    assert patterns(model, seed=5) == first
    assert len({str(one) for one in first}) > 6
    assert {name for one in first for name, _ in one} == {"0", "1"}
    assert [rate for _, _, rate in cover.active(model)] == [0.5, 0.3]
    site.undo()
    assert OwnStack not in cover.COVERED


@pytest.mark.patches("torch.flag")
def test_a_subclass_with_its_own_forward_is_found(site: Site) -> None:
    base = type(zoo.tiny_model("wav2vec2").build().encoder)

    class Mine(base):  # type: ignore[misc, valid-type]
        def forward(self, hidden_states: Any, **kwargs: Any) -> Any:
            return super().forward(hidden_states * 1.0, **kwargs)

    model = zoo.tiny_model("wav2vec2").build()
    model.encoder.__class__ = Mine
    wrapped(site, model)
    assert base in cover.COVERED or Mine in cover.COVERED
    with training.step(training.Replica(model, 3)) as step:
        model(**zoo.tiny_model("wav2vec2").batch())
    assert step.calls


@pytest.mark.patches("torch.flag")
@pytest.mark.parametrize("kind", [OwnSource, CountedList])
def test_a_class_that_cannot_be_covered_is_named(site: Site, lines: List[str], kind: Any) -> None:
    model = kind().train()
    wrapped(site, model)
    assert kind not in cover.COVERED
    assert any("ranks may skip different layers of " in line and f"{kind.__name__}: " in line for line in lines)
    # Its parameters go unused all the same, so DDP gets the flag.
    assert [rate for _, _, rate in cover.active(model)] == [0.5]


@pytest.mark.patches("transformers.overrides")
@pytest.mark.parametrize("name", ("bart", "opt"))
def test_a_rate_that_nobody_reads_is_named(site: Site, lines: List[str], name: str) -> None:
    model = zoo.tiny_model(name).build(rate=0.5)
    for setting in settings(model):
        setattr(model.config, setting, 0.0)
    share_config(model)
    wrapped(site, model)
    overrides.rates(site, importlib.import_module("torch.nn.parallel.distributed"), None)
    wrap_hooks.run_before_wrap(model)
    named = [line for line in lines if "has no effect" in line]
    assert len(named) == len(zoo.tiny_model(name).drawing())
    assert all("=0 in the config" in line and "uses 0.5" in line for line in named)


def settings(model: Any) -> List[str]:
    names = ("encoder_layerdrop", "decoder_layerdrop", "layerdrop")
    return [name for name in names if hasattr(model.config, name)]


def share_config(model: nn.Module) -> None:
    """Later releases share one object among all modules; the user changes the outermost."""
    for module in model.modules():
        if hasattr(module, "config"):
            module.config = model.config


@pytest.fixture
def noticed(site: Site) -> None:
    """What is set on configs is noticed from here on, and applied when a model is wrapped."""
    modeling = importlib.import_module("transformers.modeling_utils")
    overrides.models(site, modeling, modeling.PreTrainedModel)
    overrides.rates(site, importlib.import_module("torch.nn.parallel.distributed"), None)


@pytest.mark.patches("transformers.overrides")
@pytest.mark.parametrize("name", ("bart", "opt"))
@pytest.mark.usefixtures("noticed")
def test_what_was_set_last_counts(site: Site, lines: List[str], name: str) -> None:
    def made() -> Any:
        model = zoo.tiny_model(name).build(rate=0.5)
        share_config(model)
        return model

    def on_config(model: Any, rate: float) -> None:
        for setting in settings(model):
            setattr(model.config, setting, rate)

    def on_modules(model: Any, rate: float) -> None:
        for _, module, _ in cover.active(model):
            module.layerdrop = rate

    model = made()
    on_config(model, 0.0)
    # As unpatched, until it is wrapped.
    assert [rate for _, _, rate in cover.active(model)] and not lines
    wrapped(site, model)
    assert not cover.active(model) and all("takes the rate 0" in line for line in lines)
    model = made()
    on_config(model, 0.25)
    # The same value as before, in the same constant: it counts because it came last.
    on_modules(model, 0.5)
    wrapped(site, model)
    assert {rate for _, _, rate in cover.active(model)} == {0.5}
    model = made()
    on_modules(model, 0.5)
    on_config(model, 0.25)
    wrapped(site, model)
    assert {rate for _, _, rate in cover.active(model)} == {0.25}


@pytest.mark.patches("transformers.overrides")
@pytest.mark.usefixtures("noticed")
def test_the_outer_config_of_a_composite_model_counts(site: Site, lines: List[str]) -> None:
    for inner in (None, 0.25):
        model = zoo.tiny_model("wav2vec2").build(rate=0.5)
        model.encoder.config = copy.deepcopy(model.config)
        model.config.layerdrop = 0.0
        if inner is not None:
            model.encoder.config.layerdrop = inner
        wrapped(site, model)
        assert cover.rate_of(model.encoder) == (inner or 0.0)


@pytest.mark.patches("transformers.overrides")
def test_a_rate_that_is_computed_has_no_setting(site: Site, lines: List[str]) -> None:
    model = Computed(0.5)
    wrapped(site, model)
    overrides.rates(site, importlib.import_module("torch.nn.parallel.distributed"), None)
    assert wrap_hooks.run_before_wrap(model) is None and overrides.differences(model) == []
    assert OwnStack in cover.COVERED and Computed not in cover.COVERED


@pytest.mark.patches("transformers.overrides")
def test_a_rate_that_is_read_is_not_named(site: Site, lines: List[str]) -> None:
    model = zoo.tiny_model("wav2vec2").build(rate=0.5)
    model.config.layerdrop = 0.2
    wrapped(site, model)
    overrides.rates(site, importlib.import_module("torch.nn.parallel.distributed"), None)
    wrap_hooks.run_before_wrap(model)
    assert not [line for line in lines if "has no effect" in line]
    assert cover.rate_of(model.encoder) == 0.2


@pytest.mark.patches("torch.flag")
def test_a_config_inside_a_composite_model(site: Site, lines: List[str]) -> None:
    """model.config.encoder is not the object that the drawing module holds."""
    model = zoo.tiny_model("wav2vec2").build(rate=0.5)
    model.encoder.config = copy.deepcopy(model.config)
    model.config.layerdrop = 0.0
    wrapped(site, model)
    assert [d[0] for d in overrides.differences(model)] == ["encoder"]


@pytest.mark.patches("transformers.checkpointing")
@pytest.mark.skipif(Version("4.35") > RELEASE, reason="modules keep their checkpoint function from 4.35 on")
def test_what_becomes_of_reentrant_checkpointing(site: Site, lines: List[str]) -> None:
    checkpointing.reentrant_at_wrap(site, importlib.import_module("torch.nn.parallel.distributed"), nn.Module)
    for name, is_excluded in (("bart", True), ("wavlm", False)):
        model = zoo.tiny_model(name).build(rate=0.5)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        # The flag is left out for its sake, but for WavLM, whose backward may never end with it.
        assert bool(wrap_hooks.excluded(model)) == is_excluded
        assert kinds(model) == {True}
        wrap_hooks.forbid_reentrant(model)
        assert kinds(model) == {False} and not wrap_hooks.excluded(model)
        assert "use_reentrant=False" in lines.pop()


def kinds(model: Any) -> Set[bool]:
    return {
        checkpointing.is_reentrant(module._gradient_checkpointing_func)
        for module in model.modules()
        if getattr(module, "gradient_checkpointing", False)
    }


HANGING = """
import sys, threading, os
from tests.support import zoo
entry = zoo.tiny_model("wavlm")
model = entry.build(rate=0.0)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
loss = entry.last_loss(model(**entry.batch()))
timer = threading.Timer(float(sys.argv[1]), lambda: os._exit(9))
timer.start()
loss.backward()
timer.cancel()
"""


@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.patches("transformers.checkpointing")
@pytest.mark.skipif(Version("4.57") > RELEASE, reason="the backward ends unpatched on releases before 4.57")
def test_wavlm_with_reentrant_checkpointing_ends() -> None:
    from tests.support.ranks import ROOT, environment

    def code(switch: str, limit: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "ignore", "-c", HANGING, limit]
        return subprocess.run(command, env=environment({"DDPFIX": switch}), cwd=ROOT, stderr=subprocess.PIPE, text=True)

    assert code("0", "6").returncode == 9, "unpatched transformers ends by now: this fix may go"
    patched = code("1", "60")
    assert patched.returncode == 0
    assert "WavLM now checkpoints with use_reentrant=False: its backward never ends" in patched.stderr
