"""What the agreement is made of, in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ddpfix.patches.wenet import batches

from tests.wenet.uneven_tiny_model import Tiny, features


def gradients(model: Tiny, feats: torch.Tensor) -> Any:
    model.zero_grad()
    model.loss(feats).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_a_filler_has_zero_gradients_and_leaves_the_statistics() -> None:
    model = Tiny().train()
    before = gradients(model, features(1))
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    filling = batches.Filler(model)
    filling.keep({"feats": features(2)})
    filling.keep({"feats": features(0)})
    filling.keep({"feats": features(1)})
    assert torch.equal(filling.batch()["feats"], features(0))
    assert filling.batch() is not filling.batch()
    assert all(not grad.any() for grad in gradients(model, features(1)))
    assert torch.equal(model.norm.running_mean, statistics["norm.running_mean"])
    # Also where the loss is not finite.
    assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in gradients(model, features(1) * float("inf")))
    filling.close()
    assert filling.kept is None and model.norm.momentum == 0.1
    for name, value in model.named_buffers():
        value.copy_(statistics[name])
    assert all(torch.equal(one, other) for one, other in zip(before, gradients(model, features(1))))


@pytest.mark.parametrize("count", [0, 2])
def test_batches_without_utterances_are_known_by_their_targets(count: int) -> None:
    lengths = torch.ones(count)
    assert batches.without_utterances((["key"] * count, torch.ones(2), lengths, lengths, lengths)) is (count == 0)
    assert batches.without_utterances({"target_lengths": lengths}) is (count == 0)
    # Batches of another shape are not ours to judge.
    assert not batches.without_utterances({"feats": lengths}) and not batches.without_utterances(lengths)
