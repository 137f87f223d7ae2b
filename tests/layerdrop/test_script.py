"""A covered class can be scripted: torch.jit.script compiles the toolkit's own source."""

from __future__ import annotations

import pytest
import torch

from ddpfix.layerdrop import cover
from ddpfix.patching.site import Site

pytestmark = pytest.mark.patches("transformers.layerdrop")


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.layerdrop = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and float(torch.rand(1).item()) < self.layerdrop:
            return x
        return torch.tanh(self.linear(x))


def test_names_are_looked_up_where_the_source_is() -> None:
    site = Site("test")
    cover.cover(site, Layer, cover.shared_call)
    try:
        layer, x = Layer().eval(), torch.ones(1, 2)
        scripted = torch.jit.script(layer)
        assert torch.equal(scripted(x), layer(x))
    finally:
        assert site.undo() == []
