"""Stochastic depth: with dynamic chunks and batches of different lengths, all ranks skip the same layers.

That a training is that of unpatched code with the same decisions is shown in tests/funasr, on the same layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.wenet import trees

TREES = trees.every(("v2", "v3"), trees.since("v2.2.1"))
ON = {"layerdrop": "sync"}
STEPS = 6
# Configurations, by name.
KINDS: Dict[str, Dict[str, Any]] = {
    "branchformer": {"encoder": "branchformer", "rate": 0.5},
    "attention": {"encoder": "branchformer", "rate": 0.0, "branch": 0.5},
    "both": {"encoder": "branchformer", "rate": 0.25, "branch": 0.5},
    "e_branchformer": {"encoder": "e_branchformer", "rate": 0.5},
}


def kinds(tree: Path) -> List[str]:
    return [name for name in KINDS if name != "e_branchformer" or trees.version(tree) != "2.2.1"]


@pytest.fixture(scope="module", params=TREES)
def tree(request: Any) -> Any:
    return request.param


@pytest.fixture(scope="module")
def results(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, List[Any]]:
    folder = tmp_path_factory.mktemp("layerdrop")
    scenarios = []
    for name in kinds(tree):
        plan = {**KINDS[name], "steps": STEPS}
        none = {**plan, "rate": 0.0, **({"branch": 0.0} if "branch" in plan else {})}
        scenarios += [
            trees.scenario(f"unpatched_{name}", "depth", **plan),
            trees.scenario(f"ours_{name}", "depth", ON, moved=True, **plan),
            trees.scenario(f"off_{name}", "depth", {"layerdrop": "off"}, **plan),
            trees.scenario(f"none_{name}", "depth", **none),
        ]
    modules = [f"wenet.{part}" for part in _modules(tree)]
    scenarios.append(trees.scenario("undone", "undone", arguments=ON, modules=modules))
    return trees.run(tree, scenarios, folder)


def _modules(tree: Path) -> List[str]:
    inside = "models." if trees.version(tree) == "3.2.0.dev0" else ""
    parts = ["branchformer.encoder_layer"] + (
        ["e_branchformer.encoder_layer"] if trees.version(tree) != "2.2.1" else []
    )
    parts += ["branchformer.encoder"] if trees.version(tree) >= "3.1" else []
    return [inside + part for part in parts]


def ran(ranks: List[Any]) -> List[Any]:
    assert all(rank is not None and rank["error"] is None for rank in ranks), [rank and rank["log"] for rank in ranks]
    return [rank["ran"] for rank in ranks]


def test_unpatched_skips_other_layers_on_each_rank(tree: Path, results: Dict[str, List[Any]]) -> None:
    for name in kinds(tree):
        one, other = ran(results[f"unpatched_{name}"])
        assert one != other, name


@pytest.mark.patches("wenet.layerdrop")
def test_all_ranks_skip_the_same_layers(tree: Path, results: Dict[str, List[Any]]) -> None:
    for name in kinds(tree):
        one, other = ran(results[f"ours_{name}"])
        assert one == other, name
        assert len({str(step) for step in one}) > 1, "every step skipped the same layers"
        assert results[f"ours_{name}"][0]["weights"] == results[f"ours_{name}"][1]["weights"]


@pytest.mark.patches("wenet.layerdrop")
def test_off_is_rate_0(tree: Path, results: Dict[str, List[Any]]) -> None:
    for name in kinds(tree):
        assert ran(results[f"off_{name}"]) == ran(results[f"none_{name}"]), name
        assert all(len({layer for layer, _ in step}) == 4 for step in ran(results[f"off_{name}"])[0])
        assert results[f"off_{name}"][0]["weights"] == results[f"none_{name}"][0]["weights"], name


@pytest.mark.patches("wenet.layerdrop")
def test_undo_leaves_everything_as_it_was(results: Dict[str, List[Any]]) -> None:
    for rank in results["undone"]:
        assert rank["error"] is None and "wenet.layerdrop" not in rank["failed"] and rank["problems"] == []
        assert "wenet.layerdrop" in rank["applied"] and rank["changed"] > 0 and rank["left"] == 0
