"""``ddpfix.probe``: the model and the generators are as before, and each kind of batch and loss is taken."""

from __future__ import annotations

import json
import random
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from torch import nn

import ddpfix

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
