"""The zoo covers every class that draws, and its models behave as tests need them to."""

from __future__ import annotations

import sys
from itertools import cycle

import pytest
import torch

from tests.support.zoo import ZOO, TinyModel, drawing_classes, drawing_classes_of, scripted_draws, tiny_model

AVAILABLE = [entry for entry in ZOO if entry.available()]


def test_every_drawing_class_has_an_entry() -> None:
    covered = {(entry.module(), name) for entry in AVAILABLE for name in entry.drawing()}
    broken = {(entry.module(), name) for entry in ZOO if not entry.runs() for name in entry.drawing()}
    wanted = {(module, name) for module, names in drawing_classes().items() for name in names}
    assert wanted - covered - broken == set()


@pytest.mark.parametrize("entry", [entry for entry in AVAILABLE if not entry.survives()], ids=lambda entry: entry.name)
def test_unpatched_models_die_where_the_zoo_says_so(entry: TinyModel) -> None:
    model = entry.build()
    with pytest.raises((TypeError, RuntimeError)), scripted_draws(cycle([True, False]), [entry.module()]):
        entry.loss(model(**entry.batch())).backward()


def test_too_few_decisions_are_an_error_and_the_names_come_back() -> None:
    entry = tiny_model("bart")
    model = entry.build()
    draws = scripted_draws([False] * 3, [entry.module()])
    with pytest.raises(AssertionError, match="more layer draws than decisions"), draws:
        model(**entry.batch())
    assert vars(sys.modules[entry.module()])["torch"] is torch


LOOP = """
class Stack(nn.Module):
    def forward(self, x):
        {before}
        for i, layer in enumerate(self.layers):
            if self.training and {test} < self.p:
                continue
            x = layer(x)
        return x
class Heir(Stack):
    pass
"""


@pytest.mark.parametrize(
    ("test", "before"),
    [
        ("torch.rand([])", ""),
        ("torch.rand(())", ""),
        ("torch.rand(1, device=x.device).item()", ""),
        ("random.uniform(0, 1)", ""),
        ("np.random.random()", ""),
        ("uniform(0, 1)", ""),
        ("keep[i]", "keep = [random.random() for _ in self.layers]"),
        ("keep[i]", "rate = self.config.layerdrop"),
    ],
)
def test_a_draw_for_each_layer_is_found(test: str, before: str) -> None:
    assert drawing_classes_of(LOOP.format(before=before or "pass", test=test)) == {"Stack", "Heir"}
