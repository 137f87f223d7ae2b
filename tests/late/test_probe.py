"""The probe of one process finds what DDP finds on two ranks: the same parameters, in as many steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.late import probed
from tests.late.launch import Ranks, Scenario, steps

pytestmark = pytest.mark.sampled(inside=False, cells=True)


def plans(folder: Path) -> List[Scenario]:
    return [Scenario("by_hand", "probed:by_hand", timeout=60), Scenario("families", "probed:families", timeout=400)]


def compared(ranks: Ranks) -> Dict[str, Any]:
    """What rank 0 recorded of the models of one scenario; the other rank has the same."""
    one, other = steps(ranks, "found")
    assert one == other
    found: Dict[str, Any] = one
    return found


def agrees(found: Dict[str, Any]) -> None:
    if found["ddp"] is not None:
        assert found["probe"] == found["ddp"]
    # The error names what DDP waits for: all that got no gradient.
    assert found["first"] == found["named"]
    # The setting that follows is the one that DDP needs.
    needed = bool(found["probe"]) or bool(found["skips"])
    behind = bool(set(found["first"]) - set(found["reached"]))
    assert (found["setting"] != "") == (needed and not (behind and not found["reached"]))


@pytest.mark.parametrize("name", probed.BY_HAND)
def test_branches_by_hand(outcomes: Dict[str, Ranks], name: str) -> None:
    agrees(compared(outcomes["by_hand"])[name])


def test_every_family_with_layerdrop(outcomes: Dict[str, Ranks]) -> None:
    found = compared(outcomes["families"])
    assert len(probed.FAMILIES) >= 30
    for name in probed.FAMILIES:
        agrees(found[name])
        assert found[name]["skips"], name
        assert found[name]["sometimes"], name
