"""The zoo covers every class that draws, and its models behave as tests need them to."""

from __future__ import annotations

import sys
from itertools import cycle, repeat
from typing import Iterable, List, Tuple

import pytest
import torch
from torch import nn

from tests.support.zoo import ZOO, Draw, TinyModel, drawing_classes, drawing_classes_of, scripted_draws, tiny_model

AVAILABLE = [entry for entry in ZOO if entry.available()]
every_entry = pytest.mark.parametrize("entry", AVAILABLE, ids=lambda entry: entry.name)


def run(entry: TinyModel, model: nn.Module, decisions: Iterable[bool]) -> Tuple[float, List[Draw]]:
    """One forward and backward; the loss and the draws taken."""
    with scripted_draws(decisions, [entry.module()]) as taken:
        loss = entry.loss(model(**entry.batch()))
    model.zero_grad()
    loss.backward()
    return loss.item(), list(taken)


def test_every_drawing_class_has_an_entry() -> None:
    covered = {(entry.module(), name) for entry in AVAILABLE for name in entry.drawing()}
    broken = {(entry.module(), name) for entry in ZOO if not entry.runs() for name in entry.drawing()}
    wanted = {(module, name) for module, names in drawing_classes().items() for name in names}
    assert wanted - covered - broken == set()


@every_entry
def test_draws_are_reached_and_decide(entry: TinyModel) -> None:
    model = entry.build()
    kept, taken = run(entry, model, repeat(False))
    assert {draw.owner for draw in taken} == set(entry.drawing())
    # Of the layers of a stack at least three can be skipped.
    assert min([draw.owner for draw in taken].count(name) for name in entry.drawing()) >= 3
    assert run(entry, model, repeat(False))[0] == kept
    if entry.survives():
        skipped, _ = run(entry, model, repeat(True))
        assert skipped != kept
        mixed, _ = run(entry, model, cycle([True, False]))
        assert mixed not in (kept, skipped)


@pytest.mark.parametrize("entry", [entry for entry in AVAILABLE if not entry.survives()], ids=lambda entry: entry.name)
def test_unpatched_models_die_where_the_zoo_says_so(entry: TinyModel) -> None:
    model = entry.build()
    with pytest.raises((TypeError, RuntimeError)):
        run(entry, model, cycle([True, False]))


@pytest.mark.parametrize("name", ["bart", "wavlm", "wav2vec2-adapter"])
def test_every_parameter_of_a_kept_layer_gets_a_gradient(name: str) -> None:
    entry = tiny_model(name)
    model = entry.build()
    run(entry, model, repeat(False))
    without = {key for key, value in model.named_parameters() if value.requires_grad and value.grad is None}
    assert all("layers" not in key for key in without)


def test_decisions_fall_on_the_layers_in_order() -> None:
    entry = tiny_model("bart")
    model = entry.build()
    _, taken = run(entry, model, cycle([True, False]))
    owners = ["BartEncoder"] * 4 + ["BartDecoder"] * 4
    assert taken == [Draw(owner, skip) for owner, skip in zip(owners, cycle([True, False]))]
    for stack in (model.encoder, model.decoder):
        ran = [next(iter(layer.parameters())).grad is not None for layer in stack.layers]
        assert ran == [False, True, False, True]


def test_too_few_decisions_are_an_error_and_the_names_come_back() -> None:
    entry = tiny_model("bart")
    model = entry.build()
    with pytest.raises(AssertionError, match="more layer draws than decisions: 3"):
        run(entry, model, [False] * 3)
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
