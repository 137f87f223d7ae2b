"""Backwards in unusual places train without the flag, and accelerate's steps under ``no_sync`` are reported.

Lightning's manual optimization calls backward within the wrapper's forward, and the cached losses of
sentence-transformers call it within a hook of another one, each rank as often as it has mini-batches.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.late.launch import Ranks, Scenario, ends, said, steps

pytestmark = pytest.mark.sampled(inside=True, cells=True)
FILE = "toolkit_loops"
ACCELERATE = pytest.mark.skipif(not find_spec("accelerate"), reason="accelerate is not installed here")
# The loops that plain torch ends with an error where the flag is not set, and what each needs.
LOOPS = {"adversarial": "lightning", "cached_loss": "sentence_transformers"}
# What torch's error message names, or the strategy that Lightning's does.
FLAG: Dict[str, Dict[str, Any]] = {
    "adversarial": {"strategy": "ddp_find_unused_parameters_true"},
    "cached_loss": {"find_unused_parameters": True},
}
# Loops of accelerate, and what they are given.
ACCUMULATE: Dict[str, Dict[str, Any]] = {
    "accumulate": {},
    "accumulate_two": {"steps": 2},
    "accumulate_nested": {"steps": 2, "nested": True},
}
MODES = ("auto", "late", "find")


def plans(folder: Path) -> List[Scenario]:
    plans: List[Scenario] = []
    for name in LOOPS:
        plans += [Scenario(f"{name}-plain", f"{FILE}:{name}"), Scenario(f"{name}-flag", f"{FILE}:{name}", FLAG[name])]
        plans += [Scenario(f"{name}-{mode}", f"{FILE}:{name}", settings={"unused": mode}) for mode in MODES]
    for name, given in ACCUMULATE.items():
        plans.append(Scenario(f"plain-{name}", f"{FILE}:accumulate", given))
        plans.append(Scenario(name, f"{FILE}:accumulate", given, {"divergence": "4"}))
    return plans


@pytest.mark.patches("torch.finalize")
@pytest.mark.parametrize("name", LOOPS)
def test_plain_torch_ends_with_its_error_and_it_trains_as_with_the_flag(outcomes: Dict[str, Ranks], name: str) -> None:
    if not find_spec(LOOPS[name]):
        pytest.skip(f"{LOOPS[name]} is not installed here")
    found = ends(outcomes[f"{name}-plain"])
    assert all("parameters that were not used in producing" in end for end in found), found
    flagged = steps(outcomes[f"{name}-flag"])
    assert len(flagged[0]) == 6 and flagged[0] == flagged[1]
    for mode in MODES:
        assert steps(outcomes[f"{name}-{mode}"]) == flagged, mode
    if name == "cached_loss":
        # Ranks have unlike numbers of mini-batches: without that, it would show less than it says.
        first, second = steps(outcomes["cached_loss-late"], "backwards")
        assert first != second


@ACCELERATE
@pytest.mark.patches("torch.divergence")
def test_steps_of_accelerate_under_no_sync_are_reported(outcomes: Dict[str, Ranks]) -> None:
    ranks = outcomes["accumulate_nested"]
    found = sum(said(ranks, "never averaged the last backward"), [])
    assert len(found) == 1 and "under accumulate (toolkit_loops.py:" in found[0], ranks
    assert "Use a single accumulate(a, b) for all models" in found[0], found
    assert steps(ranks) == steps(outcomes["plain-accumulate_nested"]) and steps(ranks)[0] != steps(ranks)[1]


@ACCELERATE
@pytest.mark.patches("torch.divergence")
@pytest.mark.parametrize("name", ["accumulate", "accumulate_two"])
def test_nothing_is_said_of_accelerates_own_accumulation(outcomes: Dict[str, Ranks], name: str) -> None:
    ranks = outcomes[name]
    assert steps(ranks) == steps(outcomes[f"plain-{name}"]) and said(ranks, "averaged", "diverged") == [[], []]
