"""From where a forward may draw: a draw that no look-alike stands for would be each rank's own, without a word."""

from __future__ import annotations

import contextlib
from typing import Any, Dict

import pytest

from ddpfix.layerdrop import code_copy
from ddpfix.patching.site import PatchError

FORWARD = """
def forward(self, hidden):
    for layer in self.layers:
        if self.training and {draw} < self.layerdrop:
            continue
        hidden = torch.tanh(layer(hidden))
    return hidden
"""


class Undo:
    """As much of a site as is needed, which takes back what was done."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.at_undo, self.close = self._stack.callback, self._stack.close


def rename(imports: str, draw: str) -> Any:
    known: Dict[str, Any] = {}
    exec(f"import torch\n{imports}\n{FORWARD.format(draw=draw)}", known)
    site: Any = Undo()
    try:
        return code_copy.rename(site, known["forward"], code_copy.Traits())
    finally:
        site.close()


@pytest.mark.parametrize(
    ("imports", "draw"),
    [
        ("", "torch.rand([])"),
        ("", "torch.rand(1).item()"),
        ("import random", "random.random()"),
        ("import random", "random.uniform(0, 1)"),
        ("import numpy as np", "np.random.rand()"),
        ("import numpy", "numpy.random.uniform()"),
        ("", "self.rng.random()"),
        ("", "torch.empty(1).uniform_().item()"),
        ("", "hidden.new_empty(hidden.shape).uniform_().mean() + torch.rand([])"),
    ],
)
def test_what_can_be_shared(imports: str, draw: str) -> None:
    assert any(name.startswith(code_copy._HIDDEN) for name in rename(imports, draw).co_names)


@pytest.mark.parametrize(
    ("imports", "draw", "named"),
    [
        ("from random import random", "random()", "random"),
        ("from random import random as draw", "draw()", "draw"),
        ("from random import Random\ndraw = Random(3).uniform", "draw(0, 1)", "draw"),
        ("from torch import rand as draw", "draw([])", "draw"),
        ("from numpy.random import rand as draw", "draw()", "draw"),
        ("from torch import rand", "rand([])", "rand"),
        ("from random import uniform", "uniform(0, 1)", "uniform"),
        ("import random as chance", "chance.random()", "chance.random"),
        ("import numpy.random as generator", "generator.rand()", "generator.rand"),
        ("from numpy.random import default_rng\ngenerator = default_rng()", "generator.random()", "generator.random"),
        ("", "self.generator.random()", "self.generator.random"),
        ("", "__import__('random').random()", "random"),
    ],
)
def test_what_cannot_is_refused_with_what_can(imports: str, draw: str, named: str) -> None:
    """``torch`` is there for something else: that a source can be shared is not enough."""
    with pytest.raises(PatchError, match="imported as such") as raised:
        rename(imports, draw)
    assert f"draws by {named};" in str(raised.value)
