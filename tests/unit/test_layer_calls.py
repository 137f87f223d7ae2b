"""What a trace has of layers for which ddpfix does not draw: those that a forward did not call."""

from __future__ import annotations

import torch
from ddpfix.patches.torch.tracing.traced_model import LayerCalls
from torch.nn.modules import module as modules


def test_layers_that_were_not_called() -> None:
    layers = [torch.nn.Linear(2, 2) for _ in range(4)]
    calls = LayerCalls(layers)
    calls.begin()
    # What a program saves in the forward has no hook of ours.
    assert not any(layer._forward_pre_hooks for layer in layers)
    for number in (3, 0, 3):
        layers[number](torch.ones(1, 2))
    calls.end()
    assert calls.skipped() == [1, 2]
    calls.begin()
    # A forward that used none of them is of another part of the model.
    assert calls.skipped() == []
    layers[1](torch.ones(1, 2))
    calls.end()
    assert calls.skipped() == [0, 2, 3] and not modules._global_forward_pre_hooks
