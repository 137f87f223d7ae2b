"""A program saves and copies what it trains in any step, under every setting, and finds nothing of ddpfix in it."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

import pytest

from tests.late.launch import Ranks, Scenario, steps

pytestmark = [
    pytest.mark.patches("torch.divergence", "torch.bypass", "torch.trace", "torch.finalize"),
    pytest.mark.sampled(inside=False, cells=True),
]
# What a loop is given.
LOOPS: Dict[str, Dict[str, bool]] = {"plain": {}, **{name: {name: True} for name in ("whole", "noise", "flag")}}
SETTINGS: Dict[str, Dict[str, str]] = {
    "default": {"divergence": "2"},
    "error": {"divergence": "error"},
    "route": {"bypass": "route"},
    "late": {"unused": "late"},
    "trace": {"layerdrop": "stock"},
}


def plans(folder: Path) -> List[Scenario]:
    plans = [Scenario(f"torch-{loop}", "saved:trained", given) for loop, given in LOOPS.items()]
    for name, settings in SETTINGS.items():
        chosen = {**settings, "trace": str(folder / "traces")} if name == "trace" else settings
        plans += [Scenario(f"{name}-{loop}", "saved:trained", given, chosen) for loop, given in LOOPS.items()]
    return plans


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_saved_is_what_plain_torch_saves(outcomes: Dict[str, Ranks], name: str, loop: str) -> None:
    plain, ours = outcomes[f"torch-{loop}"], outcomes[f"{name}-{loop}"]
    for key in ("saved", "copies", "hooks", "steps"):
        assert steps(plain, key) == steps(ours, key), key
    assert not any(any(each) for each in steps(plain, "saved"))
    assert not any(any(each) for copies in steps(plain, "copies") for each in copies)
