"""``ddpfix.probe``: what it finds, and that the model and the generators are as before."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ddpfix
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site
from tests.support import ranks, zoo

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Restless(nn.Module):
    """Its forward changes all that a forward can change, but for parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.idle, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("again", self.seen)
        self.calls, self.kept = 0, [1.0]
        self.own = torch.Generator().manual_seed(3)
        self.numbers = np.random.default_rng(3)
        self.chance = random.Random(3)
        self.fail = False

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        self.kept.append(float(self.calls))
        self.seen += 1
        self.last = x
        noise = torch.rand(()) + random.random() + np.random.random()
        noise = noise + torch.rand((), generator=self.own) + self.numbers.random() + self.chance.random()
        x += 1
        if self.fail:
            raise KeyError("the model's own")
        return self.norm(self.first(x)) * noise


def state(model: Any) -> List[Any]:
    """All that has to be the same afterwards, but for gradients; objects by their identity."""
    numpy_state: Any = np.random.get_state()
    return [
        {name: (id(buffer), buffer.tolist(), buffer._version) for name, buffer in model.named_buffers()},
        {name: (id(parameter), parameter.tolist(), parameter._version) for name, parameter in model.named_parameters()},
        [module.training for module in model.modules()],
        [sorted(vars(module)) for module in model.modules()],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        (model.calls, list(model.kept), id(model.kept)),
        (model.own.get_state().tolist(), str(model.numbers.bit_generator.state), model.chance.getstate()),
        (torch.get_rng_state().tolist(), random.getstate(), numpy_state[1].tolist(), numpy_state[2]),
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_it_was(fails: bool) -> None:
    model = Restless()
    model.norm.eval()
    model(X.clone()).sum().backward()
    del model.last
    model.fail = fails
    gradients = {
        name: (parameter.grad, parameter.grad.tolist())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    before, batch = state(model), X.clone()
    if fails:
        with pytest.raises(KeyError, match="the model's own"):
            ddpfix.probe(model, batch)
    else:
        ddpfix.probe(model, batch)
    assert state(model) == before
    assert torch.equal(batch, X)
    for name, parameter in model.named_parameters():
        gradient, values = gradients.get(name, (None, None))
        assert parameter.grad is gradient
        assert gradient is None or gradient.tolist() == values
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    # A backward afterwards is none of the probe's.
    model.fail = False
    model(X.clone()).sum().backward()


def test_training_goes_on_as_if_nothing_had_been() -> None:
    def trained(probed: bool) -> Dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            if probed and step == 1:
                ddpfix.probe(model, X)
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
        return {name: value.tolist() for name, value in model.state_dict().items()}

    assert trained(True) == trained(False)


def test_an_evaluating_model_is_trained_meanwhile() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    with torch.no_grad():
        found = ddpfix.probe(model, X)
    assert found.passes == 3 and found.always == []
    assert any("evaluation" in note for note in found.notes)
    assert not model.training and not model[1].training


class Net(nn.Module):
    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.run = forward

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


SECOND, THIRD = ["second.weight", "second.bias"], ["third.weight", "third.bias"]


def test_why_a_parameter_gets_no_gradient() -> None:
    def forward(model: Any, x: Any) -> Any:
        with torch.no_grad():
            aside = model.second(x)
        return {"loss": model.first(x).sum(), "more": aside}

    found = ddpfix.probe(Net(forward), X)
    assert found.always == [*SECOND, *THIRD] and found.sometimes == {}
    assert "no_grad" in found.why["second.weight"] and "third did not run in any" in found.why["third.bias"]
    assert found.outside == []
    assert found.loss == "the output's loss" and found.setting == "find_unused_parameters=True"
    assert "freeze second, third" in found.advice[0]


def test_an_output_outside_of_the_loss() -> None:
    def forward(model: Any, x: Any) -> Any:
        return model.second(model.first(x)).sum(), model.third(x)

    found = ddpfix.probe(Net(forward), X)
    assert found.always == found.outside == THIRD
    assert found.loss == "the first entry of the output"
    assert (found.setting, found.unused) == ("", "late") and "0.0 * output.sum()" in "".join(found.advice)
    # With the sum of all outputs, there is none.
    whole = ddpfix.probe(Net(lambda model, x: [model.second(model.first(x)), model.third(x)]), X)
    assert whole.always == [] and "labels" in whole.loss
    # The same, with a loss of one's own.
    own = ddpfix.probe(Net(lambda model, x: [model.second(model.first(x)), model.third(x)]), X, lambda o, b: o[0].sum())
    assert own.always == own.outside == THIRD


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_named_with_its_kind(reentrant: bool) -> None:
    def forward(model: Any, x: Any) -> Any:
        hidden = model.first(x)
        for _ in range(2):
            hidden = checkpoint(model.second, hidden, use_reentrant=reentrant)
        return model.third(hidden) if float(x[0, 0]) > 0 else hidden

    batches = iter([X, -X, X])
    found = ddpfix.probe(Net(forward), batches)
    (entry,) = found.checkpointing
    assert (entry.name, entry.kind, entry.reentrant) == ("second", "Linear", reentrant)
    assert found.always == [] and list(found.sometimes) == THIRD
    assert found.twice == (SECOND if reentrant else [])
    assert any("use_reentrant=False" in line for line in found.advice) == reentrant


@pytest.mark.parametrize("name", ["wavlm", "bart"])
def test_what_skips_layers_is_what_the_flag_is_set_for(name: str) -> None:
    """The same list decides about the flag when DDP is built."""
    from ddpfix.layerdrop import cover

    entry = zoo.tiny_model(name)
    model = entry.build(rate=0.25)
    found = ddpfix.probe(model, entry.batch(), lambda output, batch: entry.loss(output), steps=1)
    assert [(skip.name, skip.rate) for skip in found.skips] == [(name, rate) for name, _, rate in cover.active(model)]
    assert found.setting == "find_unused_parameters=True" and "skips layers" in found.advice[0]
    zoo.set_rate(model, 0.0)
    silent = ddpfix.probe(model, entry.batch(), lambda output, batch: entry.loss(output), steps=1)
    assert silent.skips == [] and silent.setting == ""


def test_reasons_of_active_patches_count() -> None:
    site = Site("test")
    wrap_hooks.needs_flag(site, lambda model: "it says so")
    try:
        found = ddpfix.probe(nn.Linear(4, 4), X, steps=1)
    finally:
        site.undo()
    assert found.reasons == ["it says so"] and found.setting == "find_unused_parameters=True"


def test_batches_of_every_kind() -> None:
    class Keywords(nn.Linear):
        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return super().forward(x) * scale

    model = Keywords(4, 4)
    for batch in (X, (X,), [X, 2.0], {"x": X, "scale": 0.5}):
        assert ddpfix.probe(model, batch, steps=1).passes == 1
    ended = ddpfix.probe(model, iter([X, X]), steps=5)
    assert ended.steps == 2 and "2 of 5" in ended.notes[0]


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match="model is a str"):
        ddpfix.probe("model", X)
    for steps in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="steps="):
            ddpfix.probe(nn.Linear(4, 4), X, steps=steps)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss_fn returned a float"):
        ddpfix.probe(nn.Linear(4, 4), X, lambda output, batch: 1.0)
    with pytest.raises(ValueError, match="without a shape"):
        ddpfix.probe(nn.LazyLinear(4), X)
    with pytest.raises(TypeError, match="contains no tensor"):
        ddpfix.probe(Net(lambda model, x: "text"), X)


def test_the_result_is_data_and_text() -> None:
    entry = zoo.tiny_model("wavlm")
    found = ddpfix.probe(entry.build(), entry.batch(), lambda output, batch: entry.loss(output), steps=4)
    data = json.loads(json.dumps(found.as_dict()))
    assert data["model"] == "WavLMModel" and data["skips"][0]["rate"] == 0.5
    text = str(found)
    assert "encoder (WavLMEncoder): rate 0.5" in text and "find_unused_parameters=True" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.sampled(inside=False)
def test_nothing_of_it_is_imported_where_it_is_not_used() -> None:
    code = (
        "import ddpfix.auto, torch, sys; assert ddpfix.auto and ddpfix.report().active;"
        "assert [n for n in sys.modules if 'prob' in n and n.startswith('ddpfix')] == []"
    )
    environ = ranks.environment({"DDPFIX": "1"})
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)
