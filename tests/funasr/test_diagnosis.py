"""The line of a diagnosis is an override of FunASR's command line, and with it the model trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.funasr import launch, recipes, trained
from tests.funasr.launch import Scenario

pytestmark = pytest.mark.patches("torch.diagnosis")
RELEASE = trained.release()
FAILURE = "Expected to have finished reduction in the prior iteration"
OFF = {"unused": "off"}


@pytest.mark.skipif(RELEASE == (1, 0, 24), reason="the flag is this release's own default")
@pytest.mark.skipif(RELEASE < (1, 0, 18), reason="training needs edits")
@pytest.mark.parametrize("entry", trained.entries())
def test_the_line_is_an_override_and_cures(tmp_path: Path, entry: str) -> None:
    model = {"stochastic_depth_rate": 0.5}
    config = recipes.write(tmp_path, "Conformer", encoder_conf=model, train_conf={"keep_nbest_models": 10})
    failing = [Scenario("off", config, entry, settings=OFF)]
    results = launch.train(failing, tmp_path / "off", ddpfix=True)["off"]
    errors = [result.error for result in results if FAILURE in str(result.error)]
    assert errors, results[0].log
    for error in errors:
        assert error is not None and "encoder.encoders" in error and "in FunASR, paste this line" in error
        assert "EncoderLayer skips layers at random (stochastic_depth_rate 0.5)" in error
    line = str(errors[0]).rstrip().splitlines()[-1].strip()
    assert line == "++train_conf.find_unused_parameters=true"
    cured = [Scenario("cured", config, entry, [line], settings=OFF)]
    for result in launch.train(cured, tmp_path / "cured", ddpfix=True)["cured"]:
        assert not result.hung and result.error is None and result.steps, result.log[-3000:]
        assert [wrapped["find_unused"] for wrapped in result.ddp] == [True]
