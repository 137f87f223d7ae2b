"""Every family that draws a layer skip, on the installed release: covered, exact, and with unchanged random streams.

The reference does not go through ddpfix: it is the unpatched code, with draws scripted to the decisions of ddpfix.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, List, Tuple

import pytest
import torch
from ddpfix.patches.common import layerdrop

from ddpfix.layerdrop import cover, training
from ddpfix.patching.site import Site
from tests.skipping.built import seed, streams
from tests.support import zoo
from tests.support.decided import decided

pytestmark = pytest.mark.patches("transformers.layerdrop")
ENTRIES = [entry for entry in zoo.ZOO if entry.available()]
# Where the unpatched family itself fails in some patterns of skips, there is nothing to compare with.
SURVIVING = [entry for entry in ENTRIES if entry.survives()]


# Of the families every third; a cell runs all.
INSIDE = {entry.name for entry in ENTRIES[::3]}


def named(entries: List[zoo.TinyModel]) -> Any:
    marked = {each: pytest.mark.sampled(inside=each.name in INSIDE, cells=True) for each in entries}
    return pytest.mark.parametrize(
        "entry", [pytest.param(each, marks=mark, id=each.name) for each, mark in marked.items()]
    )


def covered(site: Site, entry: zoo.TinyModel) -> torch.nn.Module:
    model = entry.build()
    layerdrop.in_modules(site, importlib.import_module(entry.module()), None)
    return model


def gradients(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def run(entry: zoo.TinyModel, model: torch.nn.Module) -> Tuple[torch.Tensor, Dict[str, torch.Tensor]]:
    loss = entry.loss(model(**entry.batch()))
    if loss.requires_grad:
        loss.backward()
    return loss.detach(), gradients(model)


def test_every_class_that_draws_is_covered(site: Site) -> None:
    missed = []
    for module_name, classes in zoo.drawing_classes().items():
        try:
            module = importlib.import_module(module_name)
        except (ImportError, RuntimeError):
            # A model whose optional dependency is not installed here cannot be trained here either.
            continue
        layerdrop.in_modules(site, module, None)
        missed += [f"{module_name}.{name}" for name in classes if getattr(module, name) not in cover.COVERED]
    assert not missed, f"these classes skip layers and are not covered: {missed}"


@named(SURVIVING)
def test_equals_stock_with_the_same_decisions(
    entry: zoo.TinyModel, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = covered(site, entry)
    decisions = decided([], monkeypatch.setattr)
    for number in range(3):
        decisions.clear()
        model.zero_grad(set_to_none=True)
        replica = training.Replica(model, number)
        with training.step(replica) as step:
            loss, grads = run(entry, model)
        assert decisions, "nothing was drawn"
        assert len(step.skipped) == sum(decisions)
        expected_loss, expected = reference(entry, site, list(decisions))
        assert torch.equal(loss, expected_loss)
        assert grads.keys() == expected.keys()
        assert_equal(grads, expected)


def assert_equal(grads: Dict[str, torch.Tensor], expected: Dict[str, torch.Tensor]) -> None:
    """Bit for bit. torch 2.0 gives other gradients for small convolutions on the CPU at each call, also unpatched."""
    trusted = not torch.__version__.startswith(("1.", "2.0."))
    for name, gradient in grads.items():
        assert torch.equal(gradient, expected[name]) or (not trusted and "feature_extractor" in name), name


def reference(entry: zoo.TinyModel, site: Site, decisions: List[bool]) -> Tuple[torch.Tensor, Dict[str, torch.Tensor]]:
    site.undo()
    try:
        model = entry.build()
        with zoo.scripted_draws(decisions, [entry.module()]):
            return run(entry, model)
    finally:
        layerdrop.in_modules(site, importlib.import_module(entry.module()), None)


@named(SURVIVING)
def test_generators_advance_as_unpatched(entry: zoo.TinyModel, site: Site) -> None:
    """Within the forward of a wrapped model, and outside of one, where the toolkit decides."""
    model = entry.build()
    batch = entry.batch()
    seed(7)
    loss = entry.loss(model(**batch))
    expected = streams()
    layerdrop.in_modules(site, importlib.import_module(entry.module()), None)
    seed(7)
    assert torch.equal(entry.loss(model(**batch)), loss) and streams() == expected
    seed(7)
    with training.step(training.Replica(model, 3)) as step:
        model(**batch)
    assert step.calls, "no class of ours was called"
    assert streams() == expected


@named(ENTRIES)
def test_off_never_skips(entry: zoo.TinyModel, site: Site) -> None:
    site.settings = {"layerdrop": "off"}
    model = covered(site, entry)
    batch = entry.batch()
    assert cover.active(model) == [], "DDP would look for unused parameters"
    losses = [entry.loss(model(**batch)) for _ in range(4)]
    site.undo()
    with zoo.scripted_draws([False] * 100, [entry.module()]):
        kept = entry.loss(entry.build()(**batch))
    assert all(torch.equal(loss, kept) for loss in losses)


@named(ENTRIES)
def test_the_rate_is_found_and_undo_leaves_the_original_forward(entry: zoo.TinyModel, site: Site) -> None:
    module = importlib.import_module(entry.module())
    before = {name: vars(getattr(module, name)).get("forward") for name in entry.drawing()}
    names = set(vars(module))
    model = covered(site, entry)
    assert all(vars(getattr(module, name)).get("forward") is not before[name] for name in before)
    rates = {type(each).__name__: rate for _, each, rate in cover.active(model)}
    assert rates == dict.fromkeys(entry.drawing(), 0.5)
    zoo.set_rate(model, 0.0)
    assert cover.active(model) == []
    site.undo()
    assert all(vars(getattr(module, name)).get("forward") is before[name] for name in before)
    assert set(vars(module)) == names
