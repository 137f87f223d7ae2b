"""A model that skips layers is constructed wherever torch constructs it: what cannot be measured is done without."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from tests.late import launch
from tests.late.launch import Scenario

pytestmark = pytest.mark.patches("torch.aligned")
# Whether the costs are known afterwards.
KNOWN = {
    "no_float64": True,
    "nothing_asynchronous": False,
    "no_memory_on_one_rank": False,
    "one_rank_fails_at_the_end": False,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Any]:
    scenarios = [Scenario(name, function=f"measured:{name}", settings={"log": "info"}) for name in KNOWN]
    return launch.train(scenarios, tmp_path_factory.mktemp("measured"))


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_constructed_and_trains(outcomes: Dict[str, Any], name: str) -> None:
    records: List[Dict[str, Any]] = []
    for log, record in outcomes[name][:2]:
        assert record is not None and record["error"] is None, log
        records.append(record)
    assert records[0]["weights"] == records[1]["weights"]
    assert records[0]["costs"] == records[1]["costs"]
    assert [each is not None for each in records[0]["costs"]] == [KNOWN[name]]
