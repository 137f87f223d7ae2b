"""After ``deactivate()`` nothing of the activation is left at the level of modules, and the next one begins anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest

from tests.support import ranks

# An activation with toolkits, twice, on two ranks.
pytestmark = pytest.mark.sampled(inside=False, cells=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Any]:
    folder = tmp_path_factory.mktemp("left")
    command = [*ranks.elastic(2), str(Path(__file__).with_name("left_over.py")), str(folder)]
    code, text = ranks.run(command, ranks.with_release(), folder, 300)
    assert code == 0, text[-6000:]
    one, other = (json.loads((folder / f"found.{rank}.json").read_text()) for rank in range(2))
    assert one == other
    whole: Dict[str, Any] = one
    return whole


def test_nothing_is_left(found: Dict[str, Any]) -> None:
    assert found["before"] == {}
    assert found["left"] == [{}, {}]


def test_the_next_activation_trains_what_the_first_one_did(found: Dict[str, Any]) -> None:
    assert len(found["first"]) == 3
    assert found["first"] == found["second"]
