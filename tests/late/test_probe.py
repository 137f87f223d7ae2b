"""The probe of one process finds what DDP finds on two ranks: the same parameters, in as many steps."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from tests.late import launch, probed
from tests.late.launch import Scenario

pytestmark = pytest.mark.sampled(inside=False, cells=True)


def compared(name: str, folder: Any, timeout: float) -> Dict[str, Any]:
    """What rank 0 recorded of the models of one scenario; the other rank has the same."""
    outcomes = launch.train([Scenario(name, function=f"probed:{name}", timeout=timeout)], folder)
    records = []
    for log, record in outcomes[name]:
        assert record is not None and record["error"] is None, log
        records.append(record)
    assert records[0] == records[1]
    return records[0]


def agrees(found: Dict[str, Any]) -> None:
    if found["ddp"] is not None:
        assert found["probe"] == found["ddp"]
    # The error names what DDP waits for: all that got no gradient.
    assert found["first"] == found["named"]
    # The setting that follows is the one that DDP needs.
    needed = bool(found["probe"]) or bool(found["skips"])
    behind = bool(set(found["first"]) - set(found["reached"]))
    assert (found["setting"] != "") == (needed and not (behind and not found["reached"]))


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Any]:
    return compared("by_hand", tmp_path_factory.mktemp("hand"), 60)


@pytest.mark.parametrize("name", probed.BY_HAND)
def test_branches_by_hand(by_hand: Dict[str, Any], name: str) -> None:
    agrees(by_hand[name])


def test_every_family_with_layerdrop(tmp_path: Any) -> None:
    found = compared("families", tmp_path, 400)
    assert len(probed.FAMILIES) >= 30
    for name in probed.FAMILIES:
        agrees(found[name])
        assert found[name]["skips"], name
        assert found[name]["sometimes"], name
