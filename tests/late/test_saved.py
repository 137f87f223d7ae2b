"""A program saves and copies what it trains in any step, under every setting, and finds nothing of ddpfix in it."""

from __future__ import annotations

from typing import Dict

import pytest

from tests.late import launch
from tests.late.launch import Ranks, Scenario, ends

pytestmark = [
    pytest.mark.patches("torch.divergence", "torch.bypass", "torch.trace", "torch.finalize"),
    pytest.mark.sampled(inside=False, cells=True),
]
LOOPS = ("plain", "whole", "noise", "flag")
SETTINGS: Dict[str, Dict[str, str]] = {
    "default": {"divergence": "2"},
    "error": {"divergence": "error"},
    "route": {"bypass": "route"},
    "late": {"unused": "late"},
    "trace": {"layerdrop": "stock"},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    traces = str(tmp_path_factory.mktemp("traces"))
    plans = [Scenario(f"torch-{loop}", function=f"saved:{loop}") for loop in LOOPS]
    for name, settings in SETTINGS.items():
        chosen = {**settings, "trace": traces} if name == "trace" else settings
        plans += [Scenario(f"{name}-{loop}", function=f"saved:{loop}", settings=chosen) for loop in LOOPS]
    return launch.train(plans, tmp_path_factory.mktemp("saved"))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_saved_is_what_plain_torch_saves(outcomes: Dict[str, Ranks], name: str, loop: str) -> None:
    plain, ours = outcomes[f"torch-{loop}"], outcomes[f"{name}-{loop}"]
    assert ends(plain) == ends(ours) == ["", ""], ours
    for (_, one), (_, other) in zip(plain, ours):
        assert one is not None and other is not None
        assert not any(one["saved"]) and not any(any(each) for each in one["copies"])
        assert {key: one[key] for key in ("saved", "copies", "hooks", "steps")} == {
            key: other[key] for key in ("saved", "copies", "hooks", "steps")
        }
