"""Scenes on two ranks of a tree, stock or under ddpfix, and what each rank found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

from tests.support import waiting

RANK = Path(__file__).with_name("scene_rank.py")


def scene(name: str, act: str, settings: Optional[Dict[str, str]] = None, timeout: float = 30, **plan: Any) -> Any:
    """One scene.

    Args:
        name: how its outcome is asked for.
        act: a function of :mod:`tests.wenet.scenes`.
        settings: arguments of ``ddpfix.activate``; None is stock.
        timeout: seconds after which a hanging run is ended.
        plan: what the function is told.
    """
    return {"name": name, "act": act, "settings": settings, "timeout": timeout, **plan}


def run(tree: Path, scenes: List[Any], folder: Path) -> Dict[str, List[Any]]:
    """What the ranks found, by scene; None for a rank that had to be killed."""
    waiting.train(RANK, scenes, folder, 2, {"TREE": str(tree)})
    found = {}
    for one in scenes:
        pairs = waiting.records(folder, one["name"], 2)
        found[one["name"]] = [None if record is None else {**record, "log": log} for log, record in pairs]
    return found
