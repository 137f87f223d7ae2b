"""In what ranks differ that call backward different numbers of times, from their counts alone."""

from __future__ import annotations

from typing import Dict

import pytest

from ddpfix.ranks.groups.work import Work, difference

PLAIN = Work(12, 12, 12)
SKIPPED = "Backward was called 11 times in 12 forwards on rank 1, 12 times in 12 forwards on rank 0: "


@pytest.mark.parametrize(
    "works, told",
    [
        (
            {0: PLAIN, 1: Work(12, 11, 11, 1, "train.py:41")},
            f"{SKIPPED}rank 1 skipped one near train.py:41. Skip a batch on all ranks",
        ),
        ({0: PLAIN, 1: Work(12, 11, 11, waits=True).ended()}, f"{SKIPPED}rank 1 skipped one. "),
        ({0: PLAIN, 1: Work(12, 9, 9, 3)}, "rank 1 skipped 3. "),
        ({0: PLAIN, 1: Work(12, 12, 12, 1)}, "On rank 1 no gradient reached the model after a forward: the loss"),
        (
            {0: PLAIN, 1: Work(12, 12, 12, missed=True)},
            "On rank 1 no gradient reached the model after its last forward",
        ),
        ({0: PLAIN, 1: Work(13, 13, 6)}, "13 times in 6 optimizer steps on rank 1, 12 times in 12 optimizer steps"),
    ],
)
def test_ranks_that_do_not_call_backward_equally(works: Dict[int, Work], told: str) -> None:
    assert told in difference(works), difference(works)


@pytest.mark.parametrize(
    "works",
    [
        # All do the same, or one is a step or a micro-batch ahead.
        {0: PLAIN, 1: PLAIN},
        {0: Work(13, 13, 12), 1: PLAIN},
        {0: Work(13, 12, 12, waits=True), 1: PLAIN},
        {0: Work(8, 8, 2), 1: Work(11, 11, 2)},
        # A forward without a backward in each step, on all ranks.
        {0: Work(24, 12, 12, 12), 1: Work(24, 12, 12, 12)},
        # One rank makes another forward in each step, for a log.
        {0: Work(24, 12, 12, 12), 1: PLAIN},
        {0: Work(24, 12, 12, 12), 1: Work(13, 13, 12)},
        # Nothing is counted, there or on all ranks.
        {0: PLAIN, 1: Work()},
        {0: Work(), 1: Work()},
        {0: PLAIN},
        # Nobody has had a gradient: ranks are no different.
        {0: Work(12, 12, 12, missed=True), 1: Work(12, 12, 12, missed=True)},
    ],
)
def test_ranks_that_are_only_in_other_places(works: Dict[int, Work]) -> None:
    assert difference(works) == ""
