"""Lightning's manual optimization trains without the flag, and accelerate's steps under ``no_sync`` are reported."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Dict, List

import pytest

from tests.late import launch
from tests.late.launch import Scenario
from tests.late.test_exact import Ranks
from tests.late.test_scenarios import ends

pytestmark = pytest.mark.sampled(inside=True, cells=True)
LIGHTNING = bool(find_spec("lightning"))
ACCELERATE = bool(find_spec("accelerate"))
FILE = "toolkit_loops"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    plans: List[Scenario] = []
    if LIGHTNING:
        plans += [
            Scenario("plain", function=f"{FILE}:adversarial"),
            Scenario("flag", function=f"{FILE}:adversarial_with_the_flag"),
            Scenario("auto", function=f"{FILE}:adversarial", settings={}),
            Scenario("late", function=f"{FILE}:adversarial", settings={"unused": "late"}),
            Scenario("find", function=f"{FILE}:adversarial", settings={"unused": "find"}),
        ]
    if ACCELERATE:
        for name in ("accumulate", "accumulate_two", "accumulate_nested"):
            plans += [
                Scenario(f"plain-{name}", function=f"{FILE}:{name}"),
                Scenario(name, function=f"{FILE}:{name}", settings={"drift_steps": "4"}),
            ]
    return launch.train(plans, tmp_path_factory.mktemp("manual"))


def steps(ranks: Ranks) -> List[Any]:
    return [record["steps"] for _, record in ranks if record is not None]


@pytest.mark.skipif(not LIGHTNING, reason="Lightning is not installed here")
@pytest.mark.patches("torch.late")
def test_lightning_ends_with_its_error_in_plain_torch(outcomes: Dict[str, Ranks]) -> None:
    assert all("parameters that were not used in producing the loss" in end for end in ends(outcomes["plain"]))


@pytest.mark.skipif(not LIGHTNING, reason="Lightning is not installed here")
@pytest.mark.patches("torch.late")
@pytest.mark.parametrize("mode", ["auto", "late", "find"])
def test_manual_optimization_trains_as_with_the_flag(outcomes: Dict[str, Ranks], mode: str) -> None:
    """Each backward runs within the wrapper's forward, and the other network is frozen meanwhile."""
    assert ends(outcomes[mode]) == ends(outcomes["flag"]) == ["", ""], outcomes[mode]
    flagged = steps(outcomes["flag"])
    assert len(flagged[0]) == 6 and flagged[0] == flagged[1] and steps(outcomes[mode]) == flagged


@pytest.mark.skipif(not ACCELERATE, reason="accelerate is not installed here")
@pytest.mark.patches("torch.drift")
def test_steps_of_accelerate_under_no_sync_are_reported(outcomes: Dict[str, Ranks]) -> None:
    ranks = outcomes["accumulate_nested"]
    found = [line for log, _ in ranks for line in log.splitlines() if "was averaged in" in line]
    assert ends(ranks) == ["", ""] and len(found) == 1 and "no_sync (toolkit_loops.py:" in found[0], ranks
    assert steps(ranks) == steps(outcomes["plain-accumulate_nested"]) and steps(ranks)[0] != steps(ranks)[1]


@pytest.mark.skipif(not ACCELERATE, reason="accelerate is not installed here")
@pytest.mark.patches("torch.drift")
@pytest.mark.parametrize("name", ["accumulate", "accumulate_two"])
def test_nothing_is_said_of_accelerates_own_accumulation(outcomes: Dict[str, Ranks], name: str) -> None:
    ranks = outcomes[name]
    assert ends(ranks) == ["", ""] and steps(ranks) == steps(outcomes[f"plain-{name}"]), ranks
    assert not [line for log, _ in ranks for line in log.splitlines() if "averaged" in line or "diverged" in line]
