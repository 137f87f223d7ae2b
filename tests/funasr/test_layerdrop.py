"""Stochastic depth: on each rank the same layers are skipped, and nothing else differs from the unpatched model.

Whole layers are compared with a process without DDP (:mod:`tests.skipping.compared`). The reference for the branches of
layers is unpatched code, whose draws are scripted to the decisions that ddpfix took.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Sequence
from unittest import mock

import pytest
import torch
from ddpfix.patches.common import layerdrop

from ddpfix.layerdrop import cover, training
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site
from tests.funasr import models, trained
from tests.skipping import compared
from tests.support.decided import decided

pytestmark = pytest.mark.patches("funasr.layerdrop")
NAMES = list(models.MODELS)
BRANCHES = ("attention", "both")
found, test_plain_torch_fails_and_skips_apart, test_all_ranks_skip_the_same_layers = compared.suite(
    models, NAMES, "funasr"
)


def loss(encoder: Any) -> torch.Tensor:
    return models.loss(encoder, models.inputs(0, 0))


def gradients(encoder: Any) -> Dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


@contextlib.contextmanager
def scripted(decisions: Sequence[bool]) -> Iterator[None]:
    """Plain draws that make these decisions, in this order; a number for each must have been requested."""
    left, original = list(decisions), torch.rand

    def rand(*size: Any, **kwargs: Any) -> Any:
        value = original(*size, **kwargs)
        return torch.tensor([0.0 if left.pop(0) else 0.99]) if size == (1,) else value

    with mock.patch("torch.rand", rand):
        yield
    assert not left, f"{len(left)} decisions were not drawn"


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_equal_unpatched_with_the_same_decisions(name: str) -> None:
    outcomes, skips = [], set()
    with trained.active("funasr.layerdrop"), pytest.MonkeyPatch.context() as patch:
        assert [(part, rate) for part, _, rate in cover.active(models.encoder(name))] == RATES
        taken = decided([], patch.setattr)
        for seed in range(8):
            taken.clear()
            encoder = models.encoder(name)
            with training.step(training.Replica(encoder, seed)) as step:
                total = loss(encoder)
            total.backward()
            skips |= {(skip.module, skip.layer, skip.part) for skip in step.skipped}
            assert len(step.skipped) == sum(taken)
            outcomes.append((list(taken), total.detach(), gradients(encoder), torch.get_rng_state()))
    parts = ("attn_branch",) if name == "attention" else ("", "attn_branch")
    assert skips == {("encoders", layer, part) for layer in range(models.LAYERS) for part in parts}
    for decisions, total, grads, state in outcomes:
        encoder = models.encoder(name)
        with scripted(decisions):
            expected = loss(encoder)
        expected.backward()
        assert torch.equal(total, expected.detach()) and torch.equal(state, torch.get_rng_state())
        mine = gradients(encoder)
        assert grads.keys() == mine.keys() and all(torch.equal(grads[key], mine[key]) for key in mine)


# Of each layer, that of its own draw or of its branch's.
RATES = [(f"encoders.{layer}", models.RATE) for layer in range(models.LAYERS)]


def test_off_is_rate_0() -> None:
    expected = loss(models.encoder("both", stochastic_depth_rate=0.0, attn_branch_drop_rate=0.0))
    with trained.active("funasr.layerdrop", layerdrop="off"):
        encoder = models.encoder("both")
        assert cover.active(encoder) == []
        with training.step(training.Replica(encoder, 3)) as step:
            assert torch.equal(loss(encoder), expected)
        assert step.skipped == []


def test_outside_of_a_wrapped_model_and_in_evaluation_the_original_decides() -> None:
    evaluated, encoder = loss(models.encoder("both").eval()), models.encoder("both")
    unpatched = loss(encoder)
    with trained.active("funasr.layerdrop"):
        assert torch.equal(loss(models.encoder("both")), unpatched)
        with training.step(training.Replica(encoder, 3)) as step:
            assert torch.equal(loss(models.encoder("both").eval()), evaluated)
        assert step.skipped == []


def test_other_layers_are_covered_when_a_model_is_wrapped() -> None:
    from funasr.models.transformer.encoder import EncoderLayer

    site = Site("test")
    layerdrop.at_wrap(site, torch.nn.parallel.distributed, torch.nn.parallel.DistributedDataParallel)
    inner = EncoderLayer(4, torch.nn.Identity(), torch.nn.Identity(), 0.0)
    inner.self_attn.forward = lambda q, k, v, mask: q  # type: ignore[method-assign]
    inner.stochastic_depth_rate = models.RATE
    # A layer that nobody has examined counts beside another one of its class.
    model = torch.nn.ModuleList([inner, EncoderLayer(4, torch.nn.Identity(), torch.nn.Identity(), 0.0)])
    wrap_hooks.run_before_wrap(model)
    skips = []
    for seed in range(8):
        with training.step(training.Replica(model, seed)) as step:
            inner.train()(torch.ones(1, 2, 4), None)
        skips += step.skipped
    assert set(skips) == {training.Skip("", 0, 0)}
    assert 0 < len(skips) < 8
    site.undo()
