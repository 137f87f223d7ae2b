"""The demo with real ranks: it shows the failure and the fix, and says so when the fix is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpfix import __version__
from ddpfix.cli.demo import story
from ddpfix.cli.demo.job import UNFINISHED
from tests.demo import support

WHOLE = pytest.mark.sampled(inside=False)


@WHOLE
def test_the_unpatched_toolkit_fails_and_ddpfix_trains(tmp_path: Path) -> None:
    # A reader's own switch must not turn the demo into something else.
    done = support.demo(tmp_path, DDPFIX="0")
    assert done.returncode == 0, done.stdout
    unpatched, patched = done.stdout.split("2. The same under ddpfix")
    assert f"RuntimeError: {UNFINISHED}" in unpatched
    assert re.search(r"Failed in step \d+, rank [01]:", unpatched)
    assert UNFINISHED not in patched
    assert f"\nddpfix {__version__}: " in patched and "find_unused_parameters=True" in patched
    assert len(re.findall(r"^│ +\d+ │.*│ same +│", patched, re.MULTILINE)) == 20
    assert "DIFFERENT" not in patched
    assert "in the last ones" in patched and "identical on all ranks" in patched
    for way in ("import ddpfix.auto", "python -m ddpfix run train.py", "DDPFIX=1 bash"):
        assert way in patched
    # What libraries and the launcher print stays out of sight.
    assert "ChildFailedError" not in done.stdout and "Warning" not in done.stdout
    assert list(tmp_path.iterdir()) == [] and support.processes(tmp_path) == []


@pytest.mark.parametrize(
    ("unused", "complaint"),
    [
        pytest.param("off", "the training did not finish: rank", marks=WHOLE),
        # It trains, but no layer is shared: the record comes from the layers, not from ddpfix.
        pytest.param("find", "the ranks skipped different layers in", marks=WHOLE),
    ],
)
def test_without_the_cure_it_fails_and_shows_why(
    unused: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDPFIX_LAYERDROP", "stock")
    monkeypatch.setenv("DDPFIX_UNUSED", unused)
    # The first half is the same as in every other test here.
    monkeypatch.setattr(story, "_unpatched", lambda shown, job: True)
    assert story.tell(20, tmp_path) == 1
    output = capsys.readouterr().out
    assert f"NOT as expected (ddpfix): {complaint}" in output
    # What was hidden is worth reading now.
    assert "----- rank 1" in output
    # torchrun's summary has the traceback, which is longer than what is shown of its end.
    told = re.search(r"error_file: .*error\.json", output) is not None
    assert (told and f"RuntimeError: {UNFINISHED}" in output) is (unused == "off")
    assert "DIFFERENT" in output
