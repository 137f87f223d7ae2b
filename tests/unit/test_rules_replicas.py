"""From the snapshots of two ranks to what is said of replicas that differ."""

from __future__ import annotations

from typing import Any, List

import pytest

from ddpfix.rules import replicas
from ddpfix.rules.replicas import Snapshot, Where

THERE = Snapshot(3, 5, "names", [7, 8], [1, 2], [[1.0, 2.0], [3.0]], {"lr": "0.1"}, 3)
WHERE = Where(1, 0, "Net", 2, 4)


@pytest.mark.parametrize(
    ("change", "unequal", "is_compared", "apart"),
    [
        ({}, [], True, False),
        ({"sums": [7, 9]}, [], True, False),
        # Of other steps, parameters or gradients nothing is said; but of averages that were not equally many.
        ({"sums": [7, 9], "forwards": 6}, [], False, False),
        ({"sums": [7, 9], "names": "others"}, [], False, False),
        ({"sums": [7, 9], "gradients": [1, 3]}, [1], False, False),
        ({"sums": [7, 9], "gradients": [1, 3], "averaged": 4}, [1], False, True),
        ({"sums": [7, 9], "gradients": [1, 3], "averaged": None}, [1], False, False),
    ],
)
def test_what_two_snapshots_tell(change: Any, unequal: List[int], is_compared: bool, apart: bool) -> None:
    here = THERE._replace(**change)
    assert replicas.unequal(THERE, here) == unequal and replicas.has_averaged_apart(THERE, here) is apart
    assert (replicas.difference(THERE, here) is not None) is is_compared


def test_parameters_and_rates_that_differ_are_named() -> None:
    found = replicas.difference(THERE, THERE._replace(sums=[7, 9], samples=[[1.0, 2.0], [2.5]], rates={"lr": "0.2"}))
    assert found is not None
    line = replicas.describe_divergence(WHERE, found, ["b.weight"], 2, replicas.local_steps(2, "train.py:8"))
    assert line.startswith(
        "rank 1 diverged from rank 0 in Net between steps 2 and 4: 1 of 2 parameters, first b.weight (by 0.5 or more):"
        " b; lr 0.1 there, 0.2 here.\n2 optimizer steps before that used only gradients of forwards under no_sync"
        " (train.py:8), which DDP does not average.\nLeave no_sync"
    )


@pytest.mark.parametrize(("numbers", "told"), [((2, 1), "2 times, rank 0 once"), ((3, 2), "3 times, rank 0 2 times")])
def test_averages_that_were_not_equally_many(numbers: Any, told: str) -> None:
    line = replicas.describe_averages(WHERE, ["b.weight"], 2, numbers, "")
    assert f"By optimizer step 4 this rank has averaged {told}: their averages mix different steps." in line
