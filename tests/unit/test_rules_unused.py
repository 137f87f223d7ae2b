"""Why a parameter got no gradient: the facts of passes, and the cause that follows; no rank is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, List, Sequence

import pytest

from ddpfix.probing import facts
from ddpfix.rules import names, unused
from ddpfix.rules.names import Group
from ddpfix.rules.unused import Seen

AUX = Group("aux", ["aux.0.weight", "aux.2.weight"], True)
LAYERS = Group("layers", [f"layers.{number}.weight" for number in range(3)], False)
MASK = Group("", ["mask"], False)
SKIPS = "Net skips layers at random (layerdrop 0.5)"


@pytest.mark.parametrize(
    "group, seen, kind, cause",
    [
        (AUX, Seen(1, ran=False, ever=False), unused.NEVER, "aux did not run in the first step"),
        (AUX, Seen(3, ran=False, ever=False), unused.NEVER, "aux did not run in any of the 3 steps so far"),
        (AUX, Seen(4, 4, False, False), unused.NEVER, "aux did not run in any of the 4 passes"),
        (
            AUX,
            Seen(3, ran=False, ever=True),
            unused.BRANCH,
            "the 2 steps before used aux, this one did not (a branch that was not taken)",
        ),
        (AUX, Seen(2), unused.BRANCH, "the step before used aux, this one did not (a branch that was not taken)"),
        (
            AUX,
            Seen(4, 3, False, True),
            unused.BRANCH,
            "3 of 4 passes did not use aux (a branch that was not taken)",
        ),
        (
            AUX,
            Seen(1, ran=True, ever=True, output="output['extra']"),
            unused.OUTSIDE,
            "output['extra'] is not part of the loss, and nothing else uses aux",
        ),
        (
            AUX,
            Seen(1, ran=True, ever=True),
            unused.LOST,
            "aux ran, but the loss does not depend on the result (detach(), no_grad(), or dropped)",
        ),
        (MASK, Seen(1, ran=True), unused.BESIDE, "mask: not used, although the module that holds it ran"),
        (LAYERS, Seen(1, ran=False, ever=False, skips=SKIPS), unused.SKIPPED, f"{SKIPS}, layers in this step"),
        (LAYERS, Seen(4, 2, False, True, skips=SKIPS), unused.SKIPPED, f"{SKIPS}, layers in 2 of 4 passes"),
        # Not recorded, as with torch.compile.
        (LAYERS, Seen(1, skips=SKIPS), unused.SKIPPED, f"{SKIPS}, layers in this step"),
        (AUX, Seen(1), unused.UNKNOWN, "the graph of the loss does not reach aux"),
        # A layer that ran was not skipped.
        (
            Group("layers.1", ["layers.1.weight"], True),
            Seen(1, ran=True, skips=SKIPS),
            unused.LOST,
            "layers.1 ran, but the loss does not depend on the result (detach(), no_grad(), or dropped)",
        ),
    ],
)
def test_each_cause(group: Group, seen: Seen, kind: str, cause: str) -> None:
    (found,) = unused.causes([(group, seen)])
    assert (found.finding.kind, found.finding.cause, found.groups) == (kind, cause, [group])


def test_groups_of_one_cause_share_a_sentence_and_the_largest_comes_first() -> None:
    never, ran = Seen(1, ran=False, ever=False), Seen(1, ran=True, ever=True)
    seen = [(MASK, ran), *((Group(f"layers.{n}", [f"layers.{n}.weight"], True), never) for n in range(6))]
    first, second = unused.causes(seen)
    assert first.finding.cause == "layers.0, layers.1, layers.2, layers.3 and 2 more did not run in the first step"
    assert len(first.groups) == 6 and second.finding.kind == unused.BESIDE


@pytest.mark.parametrize(
    "own, config, expected",
    [
        ({"layerdrop": 0.5}, {}, "layerdrop 0.5"),
        ({}, {"encoder_layerdrop": 0.25}, "encoder_layerdrop 0.25"),
        ({"stochastic_depth_rate": [0, 0.1]}, {}, "stochastic_depth_rate 0.1"),
        ({"layerdrop": 0.0}, {"layerdrop": True}, ""),
        ({"stochastic_depth": "random"}, {}, ""),
        ({"layerdrop": 0.5, "training": False}, {}, ""),
    ],
)
@pytest.mark.parametrize("held", [["layers.1.weight"], ["layers.0.weight", "layers.1.weight"]])
def test_the_rate_of_a_module_above(
    own: Dict[str, Any], config: Dict[str, Any], expected: str, held: List[str]
) -> None:
    above = SimpleNamespace(**{"training": True, **own}, config=SimpleNamespace(**config))
    modules = {"": SimpleNamespace(training=True), "layers": above, "layers.1": SimpleNamespace(training=True)}
    whole = facts.skips(modules, Group("layers" if len(held) > 1 else "layers.1", held, True))
    assert whole == (f"SimpleNamespace skips layers at random ({expected})" if expected else "")
    assert facts.skips(modules, Group("layers", [*held, "layers.norm"], False)) == "", "no numbered layer"


@pytest.mark.parametrize(
    "held, expected",
    [
        (["a.weight", "a.bias"], "\n    a (weight, bias)"),
        (["b.0.w", "b.1.w", "b.2.w", "b.4.w"], "\n    b.0 to 2, 4, each (w)"),
        (["a.weight"], "\n    a (weight)"),
        (["c"], "\n    the model (c)"),
    ],
)
def test_names_are_collapsed_by_module(held: Sequence[str], expected: str) -> None:
    every = ["a.weight", "a.bias", *(f"b.{number}.w" for number in range(6)), "c"]
    assert names.listed(names.collapsed(held, every)) == expected


@pytest.mark.parametrize(
    "name, expected",
    [
        ("layers.3", "model.layers[3]"),
        ("0.linear", "model.get_submodule('0.linear')"),
        ("heads.en-us", "model.get_submodule('heads.en-us')"),
    ],
)
def test_a_module_is_named_as_python_spells_it(name: str, expected: str) -> None:
    assert names.attribute(Group(name, [f"{name}.weight"], True)) == expected
