"""What no rank has used is not touched: ``auto`` and ``late`` train the bits of ``find_unused_parameters=True``."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

import pytest
from packaging.version import Version

from tests.late.idle import PROGRAMS, RELEASE
from tests.late.launch import Ranks, Scenario, steps

# One of each kind, for a plain pytest.
SAMPLE = ("never_adamw", "frozen_at_first_adamw", "every_third_adamw", "late_momentum", "one_rank_adamw", "accumulated")
# Trained by three and by four ranks, too, where a mean of gradients may be rounded in another way.
MORE = ("never_adamw", "frozen_at_first_adamw", "experts_momentum", "one_rank_adamw", "late_adamw")


FLAG = {"find_unused_parameters": True}


def plans(folder: Path) -> List[Scenario]:
    # Nobody reads what a rank asks, where the thread that tells of failures is off.
    plans = [Scenario("unasked", "idle:late_adamw", settings={"torch_failures": "0"})]
    for name, size in [*((name, 2) for name in PROGRAMS), *((name, 3) for name in MORE)]:
        plans += [
            Scenario(f"flag-{name}-{size}", f"idle:{name}", FLAG, size=size),
            Scenario(f"auto-{name}-{size}", f"idle:{name}", settings={}, size=size),
            Scenario(f"late-{name}-{size}", f"idle:{name}", FLAG, {"unused": "late"}, size=size),
        ]
    return plans


@pytest.mark.patches("torch.finalize")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sampled(inside=name in SAMPLE, cells=True)) for name in PROGRAMS]
)
def test_it_trains_as_with_the_flag(outcomes: Dict[str, Ranks], name: str) -> None:
    if name.startswith("accumulated") and Version("2.4") > RELEASE:
        pytest.skip("with the flag ranks drift apart under no_sync there (pytorch issue 69031)")
    expected = steps(outcomes[f"flag-{name}-2"])
    for mode in ("auto", "late"):
        found = steps(outcomes[f"{mode}-{name}-2"])
        assert found == expected, outcomes[f"{mode}-{name}-2"][0][0]


@pytest.mark.patches("torch.finalize")
@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.parametrize("name", MORE)
def test_so_do_three_ranks(outcomes: Dict[str, Ranks], name: str) -> None:
    """To rounding: with the flag DDP keeps its first buckets, and a sum of three depends on the place in a bucket."""
    flagged = outcomes[f"flag-{name}-3"]
    for mode in ("auto", "late"):
        found = outcomes[f"{mode}-{name}-3"]
        one, *others = steps(found)
        assert all(other == one for other in others), found[0][0]
        assert steps(found, "idle") == steps(flagged, "idle")
        pairs = zip(steps(found, "sums")[0], steps(flagged, "sums")[0])
        assert all(ours == pytest.approx(theirs, abs=1e-5) for ours, theirs in pairs)


@pytest.mark.patches("torch.finalize")
def test_where_ranks_cannot_be_asked_zeros_are_what_the_line_says(outcomes: Dict[str, Ranks]) -> None:
    one, other = steps(outcomes["unasked"])
    assert one == other
    log, _ = outcomes["unasked"][0]
    assert "gives them a zero gradient, so weight decay and momentum still update them" in log
    assert "Set DDPFIX_UNUSED=find to leave them untouched" in log


def test_a_line_says_so_and_nothing_of_decay(outcomes: Dict[str, Ranks]) -> None:
    log, _ = outcomes["auto-never_adamw-2"][0]
    assert log.count("10 parameters of Net (aux, experts.0,") == 1, log
    assert "ddpfix trains on, as find_unused_parameters=True does" in log and "weight decay" not in log
