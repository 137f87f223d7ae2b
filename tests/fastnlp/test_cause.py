"""What failed first is what is read, on ranks that torchrun started."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

import pytest

from tests.fastnlp import launch, releases
from tests.fastnlp.launch import Result, Scenario
from tests.support.scenario import sides

pytestmark = [
    pytest.mark.patches("fastnlp.cause"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not releases.has_drivers(), reason="DistTrainer ends no other process"),
]
Results = Dict[str, List[Result]]
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
# The rank that is slower fails by itself as well, while the first one is at work.
BOTH = """
import time, tests.fastnlp.models as models
time.sleep(0.3 * models.rank())
raise ValueError(f"bad sample on rank {models.rank()}")
"""
FIRST = "failed first and ends the other ranks. The cause:"
ENDS = "Start to stop these pids"


def scenarios(folder: Path, ddpfix: bool) -> List[Scenario]:
    off = Scenario("off", "whole", fail={"rank": 1, "where": "train"}, settings={"fastnlp.cause": "0"})
    return [
        Scenario("train", "whole", fail={"rank": 1, "where": "train"}),
        Scenario("evaluate", "whole", evaluate=True, fail={"rank": 1, "where": "evaluate"}),
        Scenario("killed", "whole", fail={"rank": 1, "where": "train", "how": KILLED}),
        Scenario("both", "whole", fail={"where": "train", "how": BOTH}),
        Scenario("interrupted", "whole", fail={"rank": 1, "where": "train", "how": "raise KeyboardInterrupt"}),
        *([off] if ddpfix else []),
    ]


unpatched, ours = sides(launch.train, scenarios, ("unpatched", "ours"))


def test_the_cause_is_printed_before_others_are_ended(unpatched: Results, ours: Results) -> None:
    before, after = ours["train"][1].log.split(ENDS)
    assert "ddpfix: rank 1 failed first and ends the other ranks. The cause:\nTraceback" in before
    assert "\nValueError: bad sample\n" in before
    assert after.rstrip().endswith("ValueError: bad sample")
    assert "Traceback" not in unpatched["train"][1].log.split(ENDS)[0]
    assert FIRST not in ours["off"][1].log
    for results in (unpatched, ours):
        assert results["train"][0].hung
        assert results["train"][1].error == "ValueError: bad sample"


def test_a_failing_evaluation_keeps_its_error(unpatched: Results, ours: Results) -> None:
    # The second time the group is gone, or the other process.
    assert (unpatched["evaluate"][1].error or "").split(":")[0] in (
        "AssertionError",
        "ProcessLookupError",
        "ValueError",
    )
    assert "bad sample" not in (unpatched["evaluate"][1].error or "")
    assert ours["evaluate"][1].error == "ValueError: bad sample"
    assert ours["evaluate"][1].log.count(ENDS) == 1
    assert ours["evaluate"][0].hung


def test_a_rank_that_lost_its_peer_says_so(unpatched: Results, ours: Results) -> None:
    assert unpatched["killed"][1].hung
    assert ours["killed"][1].hung
    # Whichever comes first: the process may have been waited for by then, or not.
    assert (unpatched["killed"][0].error or "").startswith(("ProcessLookupError: [Errno 3] No such", "RuntimeError: "))
    assert "rank" not in (unpatched["killed"][0].error or "")
    error = ours["killed"][0].error or ""
    assert error.startswith("RuntimeError: ")
    assert "by peer" in error
    assert FIRST not in ours["killed"][0].log


def test_of_two_failures_the_first_is_reported(ours: Results) -> None:
    assert ours["both"][0].error == "ValueError: bad sample on rank 0"
    assert "rank 0 failed first" in ours["both"][0].log
    assert FIRST not in ours["both"][1].log


def test_an_interruption_is_left_to_fastnlp(unpatched: Results, ours: Results) -> None:
    assert ours["interrupted"][1].error == unpatched["interrupted"][1].error == "KeyboardInterrupt: "
    assert FIRST not in ours["interrupted"][1].log
