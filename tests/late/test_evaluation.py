"""A rank that evaluates the wrapped model alone waits in plain torch, and not where that was asked for."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from tests.late import launch
from tests.late.evaluations import PROGRAMS
from tests.late.launch import Scenario
from tests.late.test_exact import Ranks
from tests.late.test_scenarios import ends

pytestmark = [pytest.mark.patches("torch.evaluation"), pytest.mark.sampled(inside=False, cells=True)]
LOCAL = {"evaluation": "local"}
ALONE = ("first_rank", "last_rank", "after_join")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    def scenario(name: str, program: str, **others: Any) -> Scenario:
        return Scenario(name, function=f"evaluations:{program}", timeout=60, **others)

    plans = [scenario(f"plain-{name}", name) for name in PROGRAMS]
    plans += [scenario(f"own-{name}", f"own_{name}") for name in PROGRAMS]
    plans += [scenario(f"local-{name}", name, settings=LOCAL) for name in PROGRAMS]
    plans += [
        scenario("auto-together", "together", settings={}),
        scenario("switched", "first_rank", settings={**LOCAL, "torch_evaluation": "0"}),
    ]
    return launch.train(plans, tmp_path_factory.mktemp("evaluation"))


def records(ranks: Ranks) -> List[Any]:
    """The state after each step and the outputs of each evaluation, of each rank."""
    assert ends(ranks) == [""] * len(ranks), ranks
    return [(record["steps"], record["outputs"]) for _, record in ranks if record is not None]


@pytest.mark.parametrize("name", ALONE)
def test_a_rank_waits_in_plain_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    assert any(ends(outcomes[f"plain-{name}"]))


def test_switched_off_it_waits(outcomes: Dict[str, Ranks]) -> None:
    assert any(ends(outcomes["switched"]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_as_if_the_module_was_evaluated(outcomes: Dict[str, Ranks], name: str) -> None:
    found = records(outcomes[f"local-{name}"])
    assert found == records(outcomes[f"own-{name}"])
    assert all(outputs for _, outputs in found) or name in ("first_rank", "last_rank")


def test_where_all_evaluate_nothing_changes_by_default(outcomes: Dict[str, Ranks]) -> None:
    """In plain torch all evaluate with the first rank's buffers, which is why the other way has to be asked for."""
    plain, ours, local = (records(outcomes[f"{which}-together"]) for which in ("plain", "auto", "local"))
    assert plain == ours
    assert plain[0][1] == plain[1][1] == local[0][1] != local[1][1]
