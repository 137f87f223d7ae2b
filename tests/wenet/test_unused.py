"""Gradient checkpointing and a part that the loss leaves out, through each tree's own ``wrap_cuda_model``.

The reference is DDP built by hand: with the flag, and with checkpoints that are not reentrant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.wenet import trees

TREES = trees.every(("v30", "v3"), trees.since("v3.0.0"))
REDUCTION = "RuntimeError: Expected to have finished reduction in the prior iteration"
ON = {"unused": "auto"}
SCENES = [
    trees.scenario("unpatched", "idle", all_used=False),
    trees.scenario("unpatched_used", "idle", all_used=True),
    trees.scenario("by_hand", "idle", all_used=False, by_hand=True),
    trees.scenario("by_hand_used", "idle", all_used=True, by_hand=True),
    trees.scenario("ours", "idle", ON, all_used=False),
    trees.scenario("ours_used", "idle", ON, all_used=True),
    trees.scenario("off", "idle", {"unused": "off"}, all_used=False),
    trees.scenario("line", "idle", {"unused": "off"}, all_used=False, checkpointing=False),
    trees.scenario("undone", "undone", arguments=ON, modules=["wenet.utils.train_utils"]),
]


@pytest.fixture(scope="module", params=TREES)
def tree(request: Any) -> Any:
    return request.param


@pytest.fixture(scope="module")
def results(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, List[Any]]:
    return trees.run(tree, SCENES, tmp_path_factory.mktemp("unused"))


def errors(ranks: List[Any]) -> List[Any]:
    return [rank["error"] for rank in ranks]


def test_unpatched_fails(results: Dict[str, List[Any]]) -> None:
    assert all(error.startswith(REDUCTION) for error in errors(results["unpatched"]))
    assert results["unpatched"][0]["flag"] is False


@pytest.mark.patches("wenet.unused")
def test_it_trains_as_edited_by_hand(results: Dict[str, List[Any]]) -> None:
    for ours, reference in (("ours", "by_hand"), ("ours_used", "by_hand_used")):
        assert errors(results[ours]) == [None, None], results[ours][0]["log"]
        assert len(results[ours][0]["weights"]) == 3
        assert results[ours][0]["weights"] == results[ours][1]["weights"] == results[reference][0]["weights"]
    assert results["ours"][0]["flag"] is False
    assert results["ours"][0]["none"] == ["decoder"]


@pytest.mark.patches("wenet.unused")
def test_where_all_is_used_nothing_changes(results: Dict[str, List[Any]]) -> None:
    assert results["unpatched_used"][0]["weights"] == results["ours_used"][0]["weights"]
    assert results["ours_used"][0]["none"] == []


@pytest.mark.patches("wenet.unused")
def test_the_reason_is_logged(results: Dict[str, List[Any]]) -> None:
    reason = "ddpfix trains on, as find_unused_parameters=True does"
    assert reason in results["ours"][0]["log"] and reason not in results["unpatched"][0]["log"]


@pytest.mark.patches("wenet.unused")
def test_it_can_be_switched_off(results: Dict[str, List[Any]]) -> None:
    assert all(error.startswith(REDUCTION) for error in errors(results["off"]))


@pytest.mark.patches("wenet.unused")
def test_undo_leaves_everything_as_it_was(results: Dict[str, List[Any]]) -> None:
    for rank in results["undone"]:
        assert rank["error"] is None and "wenet.unused" not in rank["failed"] and rank["problems"] == []
        assert "wenet.unused" in rank["applied"] and rank["changed"] > 0 and rank["left"] == 0


@pytest.mark.patches("torch.diagnosis")
def test_the_line_of_the_diagnosis_is_an_override_and_cures(results: Dict[str, List[Any]]) -> None:
    for error in errors(results["off"]):
        assert "decoder" in error and "in WeNet, paste this line" in error
        assert '    --override_config "encoder_conf.gradient_checkpointing false"' in error.splitlines()
    assert errors(results["line"]) == [None, None]
    assert [rank["flag"] for rank in results["line"]] == [True, True]
