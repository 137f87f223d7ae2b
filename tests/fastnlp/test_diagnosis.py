"""The line of a diagnosis is fastNLP's own, and with it the program trains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict

import pytest
from packaging.version import Version

from tests.fastnlp import launch, releases
from tests.fastnlp.launch import FAILURE, Scenario
from tests.fastnlp.test_unused import affected, failures, finished

pytestmark = [pytest.mark.patches("torch.diagnosis"), pytest.mark.filterwarnings("ignore")]
OFF = {"unused": "off"}


def keywords(line: str) -> Dict[str, Any]:
    """The keywords in a line such as ``Trainer(..., torch_kwargs={})``."""
    given: Dict[str, Any] = eval(line.replace("..., ", ""), {"Trainer": dict, "DistTrainer": dict})
    return given


@affected
def test_the_line_is_the_trainers_and_cures(tmp_path: Path) -> None:
    failed = launch.train([Scenario("off", settings=OFF)], tmp_path / "off", ddpfix=True)["off"]
    # The rank that fails first ends the others.
    error = next(error for error in failures(failed) if "ddpfix: cure" in error)
    assert FAILURE in error and "in fastNLP, paste this line" in error
    # A message may be recorded on one line, and this is its end.
    lines = re.findall(r"(?:Dist)?Trainer\(\.\.\., [^\n]*\)", error)
    assert len(lines) == 1, error
    assert lines[0].startswith("Trainer(") is (releases.release() >= Version("1.0.0"))
    cured = Scenario("cured", kwargs=keywords(lines[0]), settings=OFF)
    finished(launch.train([cured], tmp_path / "cured", ddpfix=True)["cured"])
