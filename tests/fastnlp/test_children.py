"""fastNLP starts its other ranks by running the command line again: all ways to switch ddpfix on reach all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Sequence, Tuple

import pytest

from tests.fastnlp import launch, releases
from tests.fastnlp.launch import FAILURE, JOB, Scenario

pytestmark = [
    pytest.mark.patches("torch.finalize"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not releases.has_drivers(), reason="torchrun starts the ranks of these releases"),
]
SCRIPT = (str(JOB),)
MODULE = ("-m", "tests.fastnlp.job")
RUN = ("-m", "ddpfix", "run")
ON = {"DDPFIX": "1"}
AUTO = "import ddpfix.auto"
ACTIVATE = "import ddpfix; ddpfix.activate()"
# (command line, environment, how the script begins)
WAYS: Dict[str, Tuple[Sequence[str], Dict[str, str], str]] = {
    "script, by environment": (SCRIPT, ON, ""),
    "module, by environment": (MODULE, ON, ""),
    "run script": ((*RUN, *SCRIPT), {}, ""),
    "run -m module": ((*RUN, *MODULE), {}, ""),
    "script, by import": (SCRIPT, {}, AUTO),
    "module, by activate": (MODULE, {}, ACTIVATE),
}


def test_unpatched_fails(tmp_path: Path) -> None:
    code, screen, results = launch.alone(Scenario("unpatched"), tmp_path)
    assert code != 0
    assert FAILURE in screen
    assert all(result.hung or FAILURE in (result.error or "") or len(result.steps) == 1 for result in results)


@pytest.mark.parametrize("way", WAYS)
def test_every_rank_is_under_ddpfix(tmp_path: Path, way: str) -> None:
    words, environ, first = WAYS[way]
    code, screen, results = launch.alone(Scenario("ours", first=first), tmp_path, words, environ)
    assert code == 0, screen
    assert [len(result.steps) for result in results] == [4, 4]
    assert results[0].steps == results[1].steps
    for result in results:
        assert result.places["torch.finalize"] == result.places["torch.agreement"] == "applied"
    assert "ddpfix trains on, as find_unused_parameters=True does" in screen
    # Ranks agreed through the store of the group that fastNLP made, and rank 0 alone says so.
    assert screen.count("fixes in use for") == 1
