"""The probe of one process finds in WeNet's branchformers what DDP finds on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.wenet import launch, trees
from tests.wenet.test_layerdrop import KINDS, kinds

STEPS = 8
pytestmark = pytest.mark.sampled(inside=False, cells=True)


@pytest.mark.parametrize("tree", trees.every(("v2", "v30", "v3"), ("v2.2.1", "v3.0.0", "v3.1.0", "main")))
def test_branchformers(tree: Any, tmp_path: Path) -> None:
    plans = [launch.scenario(name, "probed", steps=STEPS, timeout=90, **KINDS[name]) for name in kinds(tree)]
    results = launch.run(tree, plans, tmp_path)
    for name in kinds(tree):
        for entry in results[name]:
            assert entry is not None and entry["error"] is None, name
            assert entry["probe"] == entry["ddp"], name
            assert entry["sometimes"] and entry["skips"], name
            assert entry["setting"] == "find_unused_parameters=True"
