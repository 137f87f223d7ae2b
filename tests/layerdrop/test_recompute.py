"""Activation checkpointing around whatever draws: the recomputation gets the decisions of the forward it repeats.

Each case is compared with the same decisions without checkpointing. One process is enough, because a step is opened
by hand as DDP's forward would; real ranks are in tests/ranks.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable, Dict, List

import pytest
import torch
from ddpfix.patches.common import layerdrop
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddpfix.layerdrop import recompute, training
from ddpfix.patching.site import Site
from tests.support import zoo

pytestmark = pytest.mark.patches("transformers.layerdrop")
ENTRY = zoo.tiny_model("wav2vec2-stable")
KINDS = pytest.mark.parametrize("reentrant", (True, False), ids=("reentrant", "non-reentrant"))
Body = Callable[[nn.Module, torch.Tensor], torch.Tensor]
Whole = Callable[[nn.Module], torch.Tensor]


@pytest.fixture(autouse=True)
def patched(site: Site) -> None:
    layerdrop.in_modules(site, importlib.import_module(ENTRY.module()), None)


def encoder() -> nn.Module:
    model = ENTRY.build(rate=0.5).encoder
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    return model


def hidden(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = ENTRY.make_config().hidden_size
    return torch.randn(2, 5, size, generator=generator)


def call(model: nn.Module, states: torch.Tensor) -> torch.Tensor:
    return model(states)[0]


def gradients(model: nn.Module) -> Dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


class Run:
    """Steps of a model under one replica; every run begins with the same weights, seeds and iteration."""

    def __init__(self) -> None:
        self.model = encoder()
        self.replica = training.Replica(self.model, 11)
        self.skips: List[List[training.Skip]] = []
        torch.manual_seed(5)

    def forward(self, body: Callable[[nn.Module], torch.Tensor]) -> torch.Tensor:
        with training.step(self.replica) as step:
            output = body(self.model)

        def reached(gradient: Any) -> None:
            step.reached = True

        output.register_hook(reached)
        self.skips.append(list(step.skipped))
        return output

    def backward(self, output: torch.Tensor) -> None:
        output.pow(2).sum().backward()


def compare(plain: Whole, kept: Whole, steps: int = 6) -> None:
    """Gradients and skips of every step, with and without checkpointing."""
    one, other = Run(), Run()
    patterns = set()
    for _ in range(steps):
        results = []
        for run, body in ((one, plain), (other, kept)):
            torch.manual_seed(5)
            run.model.zero_grad(set_to_none=True)
            run.backward(run.forward(body))
            results.append(gradients(run.model))
        assert one.skips == other.skips
        patterns.add(tuple(skip.layer for skip in one.skips[-1]))
        assert results[0].keys() == results[1].keys(), "another set of layers got gradients"
        assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert len(patterns) > 1


def fresh() -> torch.Tensor:
    return hidden().requires_grad_()


def before(model: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """A region that begins before the encoder: what comes into that is recomputed too, and has another storage."""
    return call(model, torch.nn.functional.dropout(states * 1.5, 0.1))


def undisturbed(model: nn.Module) -> nn.Module:
    """Without the generator's state, dropout would differ without ddpfix as well."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def twice(model: nn.Module, one: Any) -> torch.Tensor:
    states = fresh()
    total: torch.Tensor = one(call, model, states) + 2 * one(call, model, states)
    return total


# A batch that is used again and again has the same storage in all steps.
SAME = fresh()
# ``one(function, model, states)`` is the call, checkpointed or not.
BODIES: Dict[str, Callable[[nn.Module, Any], torch.Tensor]] = {
    "around the encoder": lambda model, one: one(call, model, fresh()),
    "without the generator's state": lambda model, one: one(call, undisturbed(model), fresh(), preserve=False),
    "twice with the same input": twice,
    "from before the encoder": lambda model, one: one(before, model, fresh()),
    "the same tensor in every step": lambda model, one: one(call, model, SAME),
}


@KINDS
@pytest.mark.parametrize("body", BODIES)
def test_a_recomputation_gets_the_decisions_of_its_forward(body: str, reentrant: bool) -> None:
    def plain(function: Body, model: nn.Module, states: torch.Tensor, preserve: bool = True) -> torch.Tensor:
        return function(model, states)

    def kept(function: Body, model: nn.Module, states: torch.Tensor, preserve: bool = True) -> Any:
        return checkpoint(function, model, states, use_reentrant=reentrant, preserve_rng_state=preserve)

    compare(lambda model: BODIES[body](model, plain), lambda model: BODIES[body](model, kept))


@KINDS
def test_two_forwards_before_their_backwards(reentrant: bool) -> None:
    def losses(run: Run, one: Body) -> Dict[str, torch.Tensor]:
        outputs = [run.forward(lambda model, s=seed: one(model, hidden(s).requires_grad_())) for seed in (1, 2)]  # type: ignore[misc]
        # The later one first, as a list of losses might be worked off.
        for output in reversed(outputs):
            run.backward(output)
        return gradients(run.model)

    plain, kept = Run(), Run()
    torch.manual_seed(5)
    expected = losses(plain, call)
    torch.manual_seed(5)
    actual = losses(kept, lambda m, h: checkpoint(call, m, h, use_reentrant=reentrant))
    assert plain.skips == kept.skips
    assert plain.skips[0] != plain.skips[1]
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


@KINDS
def test_recomputing_does_not_count(reentrant: bool) -> None:
    run = Run()
    for _ in range(3):
        run.backward(run.forward(lambda m: checkpoint(call, m, hidden().requires_grad_(), use_reentrant=reentrant)))
    assert run.replica.iteration == 2
    assert all(len({skip.call for skip in skips}) <= 1 for skips in run.skips)


def test_an_ambiguous_recomputation_is_refused() -> None:
    """Twice the same input, no generator state kept and no dropout: the two calls cannot be distinguished."""
    run = Run()
    undisturbed(run.model)

    def body(model: nn.Module) -> torch.Tensor:
        states = hidden().requires_grad_()
        options: Dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        return checkpoint(call, model, states, **options) + checkpoint(call, model, states, **options)

    with pytest.raises(RuntimeError, match="could be the one that it repeats"):
        run.backward(run.forward(body))


@pytest.mark.parametrize("known_by", ["storages", "generator", "not repeated yet"])
def test_a_call_is_known_by_each_rule_alone(known_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two calls of a step whose backward has begun, which are the same by the other two rules."""
    monkeypatch.setattr(recompute, "TASK", lambda: 0)
    module = nn.Linear(1, 1)
    first = torch.ones(1)
    batches = [first, torch.ones(1) if known_by == "storages" else first]
    step = training.Step(training.Replica(module, 1), 0, reached=True)
    for number, batch in enumerate(batches):
        torch.manual_seed(number if known_by == "generator" else 0)
        recompute.remember(module, (batch,), {}, number, step)
    training.TRAINED.calls[module][0].repeated = known_by == "not repeated yet"
    found = recompute.repeated(module, (first,), {})
    assert found is not None and found[0] == (known_by != "storages")


def enable(model: Any, reentrant: bool) -> None:
    """Switch checkpointing on; up to 4.34 transformers has one kind only."""
    if "gradient_checkpointing_kwargs" in inspect.signature(model.gradient_checkpointing_enable).parameters:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    elif reentrant:
        model.gradient_checkpointing_enable()
    else:
        pytest.skip("this release of transformers checkpoints with the reentrant kind only")


@KINDS
def test_layers_checkpointed_by_transformers(reentrant: bool, site: Site) -> None:
    entry = zoo.tiny_model("bart")
    layerdrop.in_modules(site, importlib.import_module(entry.module()), None)
    results = []
    for kept in (False, True):
        model = entry.build()
        if kept:
            enable(model, reentrant)
        with training.step(training.Replica(model, 4)) as step:
            loss = entry.loss(model(**entry.batch()))
        loss.backward()
        results.append((step.skipped, gradients(model)))
    assert results[0][0] == results[1][0] != []
    # Reentrant backwards add up the gradients of a shared input in another order.
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-5, atol=1e-5)
