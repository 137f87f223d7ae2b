"""The line of a diagnosis is an option of SpeechBrain's recipes, and with it the recipe trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.speechbrain import launch, recipes
from tests.speechbrain.launch import Scenario
from tests.speechbrain.test_unused import FAILURE, passed

pytestmark = pytest.mark.patches("torch.diagnosis")
OFF = {"unused": "off"}


def test_the_line_is_an_option_and_cures(tmp_path: Path) -> None:
    yaml = recipes.write(tmp_path)
    failing = [Scenario("off", yaml, settings=OFF, timeout=40)]
    results = launch.train(failing, tmp_path / "off", ddpfix=True)["off"]
    errors = [result.error for result in results if result.error is not None and FAILURE in result.error]
    assert errors, results[0].log
    for error in errors:
        assert "masked_spec_embed" in error or "encoder.layers." in error
        assert "in SpeechBrain, paste this line" in error
    line = errors[0].rstrip().splitlines()[-1].strip()
    assert line == "--find_unused_parameters"
    cured = [Scenario("cured", yaml, [line], settings=OFF)]
    passed(launch.train(cured, tmp_path / "cured", ddpfix=True)["cured"])
