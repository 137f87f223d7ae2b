"""Several reentrant checkpoints of one module in a step end in an error, which ddpfix explains; one of them trains."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from tests.late import launch
from tests.late.launch import Ranks, Scenario, ends, steps
from tests.late.twice import REFUSED, RIGHT

pytestmark = pytest.mark.sampled(inside=False, cells=True)
TWICE = "Expected to mark a variable ready only once"
CAUSE = "is used by two reentrant checkpoints, and each of them runs a backward of its own"
MODES = ("auto", "late")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    def scenario(name: str, loop: str, **others: Any) -> Scenario:
        return Scenario(f"{name}-{loop}", function=f"twice:{loop}", timeout=8, **others)

    plans = [scenario("plain", loop) for loop in (*REFUSED, *RIGHT)]
    plans += [scenario(mode, loop, settings={"unused": mode}) for mode in MODES for loop in (*REFUSED, *RIGHT)]
    return launch.train(plans, tmp_path_factory.mktemp("twice"))


@pytest.mark.parametrize("loop", REFUSED)
def test_plain_torch_refuses(outcomes: Dict[str, Ranks], loop: str) -> None:
    assert any(TWICE in end for end in ends(outcomes[f"plain-{loop}"])), outcomes[f"plain-{loop}"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loop", REFUSED)
def test_so_does_ddpfix_and_says_why(outcomes: Dict[str, Ranks], loop: str, mode: str) -> None:
    found = outcomes[f"{mode}-{loop}"]
    assert any(TWICE in end and CAUSE in end and "use_reentrant=False" in end for end in ends(found)), found
    # No optimizer has stepped.
    assert [record["steps"] for _, record in found if record is not None] == [[], []]


@pytest.mark.patches("torch.reentrant")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loop", RIGHT)
def test_what_is_right_stays_as_it_is(outcomes: Dict[str, Ranks], loop: str, mode: str) -> None:
    assert steps(outcomes[f"{mode}-{loop}"]) == steps(outcomes[f"plain-{loop}"])
