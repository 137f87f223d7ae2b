"""The decision for every released version, and for versions around each end of a range, is the recorded one.

The file is what the matrix of schema 1 decided. A change of the matrix is meant to change it:
``python -m tests.support.decisions`` writes it anew, and the difference says what is decided in another way.
"""

from __future__ import annotations

import json
from typing import Any, Dict

import pytest

from ddpfix.matrix import loader
from tests.support import decisions

WRITTEN: Dict[str, Any] = json.loads(decisions.FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found() -> Dict[str, Any]:
    # By the way of the file, in which tuples are lists.
    kept: Dict[str, Any] = json.loads(json.dumps(decisions.snapshot(loader.load(), WRITTEN["versions"])))
    return kept


def test_every_patch_and_no_other_is_written_down(found: Dict[str, Any]) -> None:
    assert list(found) == list(WRITTEN["patches"]), "if that is meant: python -m tests.support.decisions"
    assert len(found) > 80
    assert sum(map(len, WRITTEN["versions"].values())) > 1000


@pytest.mark.parametrize("patch", list(WRITTEN["patches"]))
def test_a_version_is_decided_about_as_before(found: Dict[str, Any], patch: str) -> None:
    assert found[patch] == WRITTEN["patches"][patch], "if that is meant: python -m tests.support.decisions"
