"""Scenarios on two ranks of a tree, unpatched or under ddpfix, and what each rank records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

from tests.support import pool

RANK = Path(__file__).with_name("rank.py")


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
