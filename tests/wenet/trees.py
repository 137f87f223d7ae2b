"""Source trees of WeNet: real ones, which a user provides, and stand-ins of our own that are always there; their runs.

WeNet is on no registry, so the environment variable TEST_WENET names a folder with one checkout a tag.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest

from tests.support import pool, ranks

VARIABLE = "TEST_WENET"
RANK = Path(__file__).with_name("rank.py")
# What the marks in the matrix say of each tag.
VERSIONS = {
    "v1.0.0": "1.0.1",
    "v1.0.1": "1.0.1",
    "v2.0.0": "2.0.1",
    "v2.0.1": "2.0.1",
    "v2.1.0": "2.1.0",
    "v2.2.0": "2.2.0",
    "v2.2.1": "2.2.1",
    "v3.0.0": "3.0.0",
    "v3.0.1": "3.0.1",
    "v3.1.0": "3.1.0",
    "main": "3.2.0.dev0",
}
TAGS = tuple(VERSIONS)
# Packages of our own with the names, signatures and faults of these versions, as far as they are tested.
STAND_INS = Path(__file__).parent / "stand_ins"
LIKE = {"v1": "1.0.1", "v2": "2.2.1", "v30": "3.0.0", "v3": "3.2.0.dev0"}
HOW = (
    f"no WeNet in {VARIABLE}: git clone https://github.com/wenet-e2e/wenet; cd wenet; for tag in {' '.join(TAGS)}; do"
    f" mkdir -p TREES/$tag && git archive $tag wenet | tar -x -C TREES/$tag; done; export {VARIABLE}=TREES"
)


def available() -> Dict[str, Path]:
    """The checkouts that there are, by tag; each one is a folder to be put on PYTHONPATH."""
    folder = os.environ.get(VARIABLE, "").strip()
    if not folder:
        return {}
    folders = {entry.name: entry.resolve() for entry in sorted(Path(folder).iterdir()) if (entry / "wenet").is_dir()}
    known = [tag for tag in VERSIONS if tag in folders]
    return {tag: folders[tag] for tag in known}


def since(first: str) -> Tuple[str, ...]:
    """The tags from this one on."""
    return TAGS[TAGS.index(first) :]


def real(tags: Sequence[str] = TAGS) -> List[Any]:
    """Parameters for tests on real trees: the checkout's folder, named by its tag; skipped where it is not there."""
    folders = available()
    if not folders:
        return [pytest.param(None, id="real_trees", marks=pytest.mark.skip(reason=HOW))]
    return [
        pytest.param(folders.get(tag), id=tag, marks=() if tag in folders else pytest.mark.skip(reason=HOW))
        for tag in tags
    ]


def every(stand_ins: Sequence[str], tags: Sequence[str], sample: bool = True) -> List[Any]:
    """The same with stand-ins in front."""
    return [*stood_in(stand_ins, sample), *real(tags)]


def stood_in(names: Sequence[str], sample: bool = True, newest: bool = True) -> List[Any]:
    """Stand-ins; of several, the last one is the sample, unless not even the newest one is to be in it."""
    inside = {name: pytest.mark.sampled(inside=not sample or (newest and name == names[-1])) for name in names}
    return [pytest.param(STAND_INS / name, id=f"stand_in_{name}", marks=mark) for name, mark in inside.items()]


def version(tree: Path) -> str:
    """The version that a tree is recognised as."""
    return LIKE[tree.name] if tree.parent == STAND_INS else VERSIONS[tree.name]


def environ(tree: Path, **more: str) -> Dict[str, str]:
    """An environment in which ``import wenet`` finds this tree, and DDPFIX=1 switches ddpfix on."""
    whole = ranks.environment()
    whole["PYTHONPATH"] = os.pathsep.join([str(tree), whole["PYTHONPATH"]])
    return {**whole, **more}


def scenario(
    name: str, function: str, settings: Optional[Dict[str, str]] = None, timeout: float = 30, **plan: Any
) -> Any:
    """One run of a function of :mod:`tests.wenet.scenarios`; settings are those of ``ddpfix.activate``, if any."""
    return {"name": name, "function": function, "settings": settings, "timeout": timeout, **plan}


def run(tree: Path, scenarios: List[Any], folder: Path) -> Dict[str, List[Any]]:
    """What the ranks recorded, by scenario; None for a rank that had to be killed."""
    pool.train(RANK, scenarios, folder, 2, {"TREE": str(tree)})
    results = {}
    for one in scenarios:
        pairs = pool.records(folder, one["name"], 2)
        results[one["name"]] = [None if record is None else {**record, "log": log} for log, record in pairs]
    return results
