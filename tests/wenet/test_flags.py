"""``--use_lora False`` is False."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.wenet import launch, trees

pytestmark = pytest.mark.patches("wenet.overrides")

WORDS = ["True", "true", "1", "yes", "False", "false", "0", "no", "OFF", "", "maybe"]
INTENDED = {word: word.lower() in ("true", "1", "yes") for word in WORDS if word != "maybe"}


@pytest.fixture(scope="module", params=trees.every(("v3",), trees.since("v3.1.0")))
def results(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, List[Any]]:
    tree: Path = request.param
    scenarios = [
        launch.scenario("unpatched", "flags", words=WORDS),
        launch.scenario("ours", "flags", {"overrides": "apply"}, words=WORDS),
        launch.scenario("off", "flags", {"overrides": "off"}, words=WORDS),
    ]
    return launch.run(tree, scenarios, tmp_path_factory.mktemp("flags"))


def test_unpatched_takes_every_word_for_true(results: Dict[str, List[Any]]) -> None:
    for name in ("unpatched", "off"):
        assert {word: results[name][0][word] for word in WORDS} == {word: [bool(word), bool(word), 8] for word in WORDS}


def test_words_mean_what_they_say(results: Dict[str, List[Any]]) -> None:
    for rank in results["ours"]:
        assert {word: rank[word] for word in INTENDED} == {
            word: [intended, intended, 8] for word, intended in INTENDED.items()
        }
        assert rank["maybe"] == "error"
        assert (
            "argument --use_lora: 'maybe' is neither true nor false. Use one of true, yes, on, 1, false" in rank["log"]
        )
