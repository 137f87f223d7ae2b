"""Where the flag is the slower of the two ways, a model that skips layers trains without it, and as with it."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from tests.late import launch
from tests.late.launch import Ranks, Scenario, both, comparison

pytestmark = pytest.mark.patches("torch.flag", "torch.finalize")
OPTIMIZERS = ("sgd", pytest.param("adamw", marks=pytest.mark.sampled(inside=False, cells=True)))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    def plan(name: str, optimizer: str, settings: Dict[str, str], *devices: str) -> Scenario:
        how: Dict[str, Any] = comparison(optimizer=optimizer, slower_on=list(devices))
        return Scenario(name, comparison=how, settings=settings, steps=10)

    plans = []
    for each in ("sgd", "adamw"):
        plans += [plan(f"flag-{each}", each, {}), plan(f"finalized-{each}", each, {}, "cpu")]
        plans += [plan(f"asked-{each}", each, {"unused": "find"}, "cpu"), plan(f"other-{each}", each, {}, "mps")]
    return launch.train(plans, tmp_path_factory.mktemp("slower"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_trains_bit_for_bit_as_with_the_flag(outcomes: Dict[str, Ranks], optimizer: str) -> None:
    with_flag, without = both(outcomes, f"flag-{optimizer}"), both(outcomes, f"finalized-{optimizer}")
    assert [record["flag"] for record in (*with_flag, *without)] == [True, True, False, False]
    for one, other in zip(with_flag, without):
        assert one["steps"] == other["steps"] and one["none"] == other["none"]
    log = outcomes[f"finalized-{optimizer}"][0][0]
    assert "at random), because with it, on cpu the host waits for each backward. ddpfix completes" in log, log


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["asked", "other"])
def test_the_flag_stays_where_it_was_asked_for_and_on_other_devices(
    outcomes: Dict[str, Ranks], name: str, optimizer: str
) -> None:
    assert all(record["flag"] for record in both(outcomes, f"{name}-{optimizer}"))
