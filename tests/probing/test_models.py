"""``ddpfix.probe`` leaves all as before, for each kind of batch and loss; and what the probe finds of models."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Callable, Dict, Iterable, List

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ddpfix
from ddpfix.layerdrop import cover
from ddpfix.probing.program import Program
from ddpfix.probing.result import Result, of_model
from tests.support import ddp_finding, ranks, zoo

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
    assert not model.training and not model[1].training


@pytest.mark.parametrize(
    ("output", "loss", "without"),
    [
        (lambda one, other: {"loss": one.sum(), "more": other}, "the output's loss", True),
        (lambda one, other: (one.sum(), other), "the first entry of the output", True),
        (lambda one, other: one.sum(), "the output", True),
        (lambda one, other: [one, other], "the sum of all outputs", False),
    ],
)
def test_the_loss_is_that_of_the_output(output: Any, loss: str, without: bool) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return output(self.one(x), self.other(x))

    found = ddpfix.probe(Two(), X)
    assert found.loss.startswith(loss) and found.always == (["other.weight", "other.bias"] if without else [])
    assert json.loads(json.dumps(found.as_dict()))["model"] == "Two" and "  loss  " in str(found)
    if not without:
        own = ddpfix.probe(Two(), X, lambda whole, batch: whole[0].sum())
        assert own.always == own.outside == ["other.weight", "other.bias"] and own.unused == "late"


def test_batches_of_every_kind() -> None:
    class Keywords(nn.Linear):
        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return super().forward(x) * scale

    model = Keywords(4, 4)
    for batch in (X, (X,), [X, 2.0], {"x": X, "scale": 0.5}):
        assert ddpfix.probe(model, batch, steps=1).passes == 1
    ended = ddpfix.probe(model, iter([X, X]), steps=5)
    assert ended.steps == 2


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
        ddpfix.probe(nn.Identity(), "text")


# What the probe finds of the models of a program, and the setting that follows.

SECOND, THIRD = ["second.weight", "second.bias"], ["third.weight", "third.bias"]


class Net(nn.Module):
    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.run = forward

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def observed(
    forward: Callable[[Any, Any], Any], loss: Callable[[Any], Any], batches: Iterable[Any] = (X, X, X)
) -> Result:
    return ddp_finding.observed(Net(forward), batches, lambda output, batch: loss(output))


def test_why_a_parameter_gets_no_gradient() -> None:
    def forward(model: Any, x: Any) -> Any:
        with torch.no_grad():
            aside = model.second(x)
        return {"loss": model.first(x).sum(), "more": aside}

    found = observed(forward, lambda output: output["loss"])
    assert (found.steps, found.passes, found.trainable, found.under) == (3, 3, 6, "not under DDP")
    assert found.always == [*SECOND, *THIRD] and found.sometimes == {} and found.outside == []
    assert "no_grad" in found.why["second.weight"] and "third did not run in any" in found.why["third.bias"]
    assert found.setting == "find_unused_parameters=True" and "freeze second, third" in found.advice[0]


def test_an_output_outside_of_the_loss() -> None:
    def forward(model: Any, x: Any) -> Any:
        return model.second(model.first(x)).sum(), model.third(x)

    found = observed(forward, lambda output: output[0])
    assert found.always == found.outside == THIRD
    assert (found.setting, found.unused) == ("", "late") and "0.0 * output.sum()" in "".join(found.advice)
    assert observed(forward, lambda output: output[0] + output[1].sum()).always == []


def test_a_result_that_is_dropped_inside_of_the_model_is_no_output() -> None:
    def forward(model: Any, x: Any) -> Any:
        model.second(x)
        return model.third(model.first(x))

    found = observed(forward, lambda output: output.sum())
    assert found.always == SECOND and found.outside == [] and found.setting == "find_unused_parameters=True"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_named_with_its_kind(reentrant: bool) -> None:
    def forward(model: Any, x: Any) -> Any:
        hidden = model.first(x)
        for _ in range(2):
            hidden = checkpoint(model.second, hidden, use_reentrant=reentrant)
        return model.third(hidden) if float(x[0, 0]) > 0 else hidden

    found = observed(forward, lambda output: output.sum(), [X, -X, X])
    assert found.checkpointing == [{"name": "second", "kind": "Linear", "reentrant": reentrant}]
    assert found.always == [] and list(found.sometimes) == THIRD
    assert found.twice == (SECOND if reentrant else [])
    assert any("use_reentrant=False" in line for line in found.advice) == reentrant


@pytest.mark.parametrize("name", ["wavlm", "bart"])
def test_what_skips_layers_is_what_the_flag_is_set_for(name: str) -> None:
    """The same list decides about the flag when DDP is built."""
    entry = zoo.tiny_model(name)
    model = entry.build(rate=0.25)

    def found() -> Result:
        return ddp_finding.observed(model, [entry.batch()], lambda output, batch: entry.loss(output))

    seen = found()
    assert [(skip["name"], skip["rate"]) for skip in seen.skips] == [(n, rate) for n, _, rate in cover.active(model)]
    assert seen.setting == "find_unused_parameters=True" and "skips layers" in seen.advice[0]
    zoo.set_rate(model, 0.0)
    silent = found()
    assert silent.skips == [] and silent.setting == ""


def test_the_result_is_data_and_text() -> None:
    entry = zoo.tiny_model("wavlm")
    batches = [entry.batch() for _ in range(4)]
    found = ddp_finding.observed(entry.build(), batches, lambda output, batch: entry.loss(output))
    data = json.loads(json.dumps(asdict(found)))
    assert data["model"] == "WavLMModel" and data["skips"][0]["rate"] == 0.5
    lines = of_model(data)
    text = "\n".join(lines)
    assert "encoder (WavLMEncoder): rate 0.5" in text and "find_unused_parameters=True" in text
    assert max(map(len, lines)) <= 120


def test_a_failure_of_the_probe_leaves_the_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(Program, "_model_of", fails)
    done: List[int] = []
    program, model = Program(1, fails, lambda: done.append(1)), nn.Linear(4, 4)
    program.start()
    model(X).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert str(program.failure) == "no such thing" and not done and program.results() == []
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks


@pytest.mark.sampled(inside=False)
def test_nothing_of_it_is_imported_where_it_is_not_used() -> None:
    code = (
        "import ddpfix.auto, torch, sys; assert ddpfix.auto and ddpfix.report().active;"
        "assert [n for n in sys.modules if 'prob' in n and n.startswith('ddpfix')] == []"
    )
    environ = ranks.environment({"DDPFIX": "1"})
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)
