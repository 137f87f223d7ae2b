"""What is proved to decide about a layer, whatever it draws with, and what is left to each rank."""

from __future__ import annotations

import ast
import random
from types import SimpleNamespace
from typing import Any, Dict, List

import numpy as np
import pytest
import torch

from ddpfix.layerdrop import comparisons
from ddpfix.layerdrop.comparisons import Decision
from ddpfix.layerdrop.numbers import Scope

FORWARD = """
def forward(self, hidden, rate):
    {before}
    for index, layer in enumerate(self.layers):
        {inside}
        if self.training and {condition}:
            continue
        hidden = torch.tanh(layer(hidden))
    return hidden
"""


# A loop over the layers within another one.
TURN = "for i, part in enumerate(self.layers): hidden = hidden if draws[i] < self.p else part(hidden)"


def found(condition: str, before: str = "pass", inside: str = "pass", **names: Any) -> List[Decision]:
    outer: Dict[str, Any] = {"torch": torch, "random": random, "np": np, "numpy": np, **names}
    return of(FORWARD.format(before=before, inside=inside, condition=condition), outer)


def of(text: str, outer: Dict[str, Any]) -> List[Decision]:
    tree = ast.parse(text).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return list(comparisons.in_scope(Scope(tree, outer)).decisions)


@pytest.mark.parametrize(
    ("condition", "rate"),
    [
        ("random.random() < self.p", 0.25),
        ("self.p > random.random()", 0.25),
        ("not random.random() > self.p", 0.25),
        ("random.random() > self.p", 0.75),
        ("random.random() < self.config.get('layerdrop', 0.0)", 0.5),
        ("random.random() < self.p[index]", 0.25),
        ("random.random() < self.rates[index]", 0.375),
    ],
)
def test_how_often_a_layer_is_skipped(condition: str, rate: float) -> None:
    module = SimpleNamespace(p=0.25, config={"layerdrop": 0.5}, rates=[0.125, 0.375])
    assert comparisons.reader(found(condition))(module) == rate


@pytest.mark.parametrize(("then", "is_part"), [("x", False), ("self.part(x)", True)])
def test_a_module_that_draws_for_itself_may_leave_out_a_branch_only(then: str, is_part: bool) -> None:
    text = f"def forward(self, x):\n    y = {then}\n    return y if random.random() < self.p else self.inner(y)\n"
    (decision,) = of(text, {"random": random})
    assert decision.is_part is is_part


@pytest.mark.parametrize(
    "condition",
    [
        "torch.rand([]) < self.layerdrop",
        "torch.rand(()).to(hidden.device) < self.config.rate",
        "float(torch.rand(1, device=hidden.device)) <= self.p[index]",
        "self.p > torch.rand(1).item()",
        "torch.empty(1).uniform_().item() < self.p",
        "random.random() < 0.1",
        "random.uniform(0, 1) < self.config.get('layerdrop', 0.0)",
        "self.rng.random() < self.p",
        "not random.random() > self.p",
        "draw() < self.p",
    ],
)
def test_what_ranks_share(condition: str) -> None:
    (decision,) = found(condition, draw=random.random)
    assert decision.number is not None and not decision.refusal
    assert [ast.unparse(each) if hasattr(ast, "unparse") else "layer" for each in decision.layers] == ["layer"]
    # The layer is left out where the condition as a whole is true.
    assert decision.skip is (not condition.startswith("not "))


@pytest.mark.parametrize(
    ("before", "inside", "condition"),
    [
        ("draws = torch.rand(len(self.layers))", "pass", "draws[index] < self.p"),
        ("draws = torch.empty(len(self.layers)).uniform_(0, 1)", "pass", "not draws[index] > self.p[index]"),
        ("pass", "skip = np.random.rand() < self.p", "skip"),
        ("pass", "draw = torch.rand(()); hidden = hidden + draw; print(draw)", "draw < self.p"),
        ("pass", "keep = random.random() >= self.p", "not keep or bool(self.off)"),
    ],
)
def test_a_number_is_followed_through_local_names(before: str, inside: str, condition: str) -> None:
    (decision,) = found(condition, before, inside)
    assert not decision.refusal


@pytest.mark.parametrize(
    ("before", "inside", "condition"),
    [
        # From a generator of the program's own, another distribution, or what is no number.
        ("dice = random.Random(3)", "pass", "dice.random() < self.p"),
        ("pass", "pass", "torch.rand([], generator=self.generator) < self.p"),
        ("pass", "pass", "random.randint(0, 99) < 100 * self.p"),
        ("pass", "pass", "random.uniform(self.low, self.high) < self.p"),
        ("pass", "pass", "np.random.uniform(0, 100) < 100 * self.p"),
        ("pass", "pass", "1 - np.random.random_sample() < self.p"),
        # The same number for all layers, or not for all of them.
        ("draw = random.random()", "pass", "draw < self.p"),
        ("draws = torch.rand(3)", "pass", "draws[0] < self.p"),
        ("draws = torch.rand(3)", TURN, "index in self.left_out"),
        ("draw = random.random()", "draw = 1.0 if index else draw", "draw < self.p"),
        ("draw = 0.5", "draw = random.random()", "draw < self.p"),
        # What it is compared with depends on data, or on the caller, or is no attribute: no public encoder computes it.
        ("survival = 1 - self.p", "draw = random.random()", "draw > survival"),
        ("pass", "pass", "random.random() < self.p * index / len(self.layers)"),
        ("pass", "pass", "random.random() < self.p[int(hidden.sum())]"),
        ("pass", "pass", "random.random() < hidden.mean()"),
        ("pass", "pass", "random.random() < rate"),
        ("pass", "pass", "random.random() < random.random()"),
        ("pass", "pass", "0.1 < random.random() < self.p"),
    ],
)
def test_what_is_not_certain_is_left_to_each_rank_with_a_reason(before: str, inside: str, condition: str) -> None:
    assert {bool(decision.refusal) for decision in found(condition, before, inside)} == {True}


@pytest.mark.parametrize(
    "inside",
    [
        "hidden = hidden * random.uniform(0.8, 1.2)",
        "if random.random() < self.p: hidden = self.augment(hidden)",
        "hidden = self.noise(hidden) if torch.rand(()) < self.p else hidden",
        "hidden = torch.where(torch.rand([]) < self.p, hidden, layer(hidden))",
        "hidden = layer(hidden) if random.random() < self.p else layer(2 * hidden)",
        "hidden = layer(hidden); hidden = layer(hidden) if random.random() < self.p else hidden",
        "self.log(torch.rand(1) < self.p)",
    ],
)
def test_a_draw_that_decides_about_no_layer_is_not_looked_at(inside: str) -> None:
    assert found("index in self.left_out", inside=inside) == []


def test_a_function_that_draws_is_read_once_among_thousands_that_do_not() -> None:
    """A process that has imported many models has thousands of methods, and each is asked for at each activation."""

    class Encoder:
        def forward(self, x: Any) -> Any:
            for layer in self.layers:  # type: ignore[attr-defined]
                if torch.rand([]) < self.layerdrop:  # type: ignore[attr-defined]
                    continue
                x = layer(x)
            return x

    drawing: Any = Encoder.forward
    first = comparisons.of(drawing)
    assert first.decisions
    for number in range(600):
        names: Dict[str, Any] = {}
        exec(f"def forward(self, x): return x + {number}", names)
        assert not comparisons.of(names["forward"]).decisions
    assert comparisons.of(drawing) is first
