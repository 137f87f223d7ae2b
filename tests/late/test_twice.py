"""Several reentrant checkpoints of one module in a step end in an error in plain torch; here they train, exactly."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from tests.late import launch
from tests.late.launch import Scenario
from tests.late.test_exact import Ranks
from tests.late.test_scenarios import ends
from tests.late.twice import LOOPS, OTHERS, RIGHT

pytestmark = pytest.mark.sampled(inside=False, cells=True)
TWICE = "Expected to mark a variable ready only once"
SAID = "a module is in several reentrant checkpoints of one step"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    def scenario(name: str, loop: str, **others: Any) -> Scenario:
        return Scenario(name, function=f"twice:{loop}", timeout=8, **others)

    plans = [scenario(f"plain-{loop}", loop) for loop in (*LOOPS, *RIGHT)]
    plans += [scenario(f"kept-{loop}", f"kept_{loop}") for loop in LOOPS]
    plans += [scenario(f"ours-{loop}", loop, settings={}) for loop in (*LOOPS, *RIGHT, *OTHERS)]
    plans += [
        scenario("three", "module", settings={}, size=3),
        scenario("kept-three", "kept_module", size=3),
        scenario("switched", "module", settings={"torch_reentrant": "0"}),
    ]
    return launch.train(plans, tmp_path_factory.mktemp("twice"))


def steps(ranks: Ranks) -> List[Any]:
    assert ends(ranks) == [""] * len(ranks), ranks
    return [record["steps"] for _, record in ranks if record is not None]


@pytest.mark.parametrize("loop", LOOPS)
def test_plain_torch_refuses(outcomes: Dict[str, Ranks], loop: str) -> None:
    assert any(TWICE in end for end in ends(outcomes[f"plain-{loop}"])), outcomes[f"plain-{loop}"]


@pytest.mark.patches("torch.reentrant")
@pytest.mark.parametrize("loop", LOOPS)
def test_it_trains_what_it_trains_without_checkpoints(outcomes: Dict[str, Ranks], loop: str) -> None:
    first, second = steps(outcomes[f"ours-{loop}"])
    kept = steps(outcomes[f"kept-{loop}"])[0]
    assert first == second
    # A gradient is added to that of the micro-batch before it part by part, as checkpoints do in one process.
    pairs = zip(first, kept)
    assert all(
        ours == pytest.approx(theirs, abs=1e-6 if loop == "accumulated" else 0.0, rel=0.0) for ours, theirs in pairs
    )
    assert SAID in outcomes[f"ours-{loop}"][0][0]


@pytest.mark.patches("torch.reentrant")
def test_three_ranks(outcomes: Dict[str, Ranks]) -> None:
    first, second, third = steps(outcomes["three"])
    assert first == second == third == steps(outcomes["kept-three"])[0]


@pytest.mark.patches("torch.reentrant")
@pytest.mark.parametrize("loop", RIGHT)
def test_what_is_right_stays_as_it_is(outcomes: Dict[str, Ranks], loop: str) -> None:
    assert steps(outcomes[f"ours-{loop}"]) == steps(outcomes[f"plain-{loop}"])
    assert SAID not in outcomes[f"ours-{loop}"][0][0]


@pytest.mark.parametrize("name", ["ours-unknown", "switched"])
def test_what_cannot_be_told_or_is_off_keeps_the_error(outcomes: Dict[str, Ranks], name: str) -> None:
    assert any(TWICE in end for end in ends(outcomes[name])), outcomes[name]
