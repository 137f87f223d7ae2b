"""The demo with real ranks: it shows the failure and the cure, and says so when the cure is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpfix.cli.demo import story, verdict
from tests.demo import support


@pytest.mark.parametrize(
    ("model", "loop"),
    [
        ("wavlm", "plain"),
        ("wavlm", "accelerate"),
        ("bart", "trainer"),
        # Both models and all loops are there without it.
        pytest.param("bart", "plain", marks=pytest.mark.sampled(inside=False)),
    ],
)
def test_stock_fails_and_ddpfix_trains(model: str, loop: str, tmp_path: Path) -> None:
    if loop != "plain":
        pytest.importorskip("accelerate")
    # A reader's own switch must not turn the demo into something else.
    done = support.demo(tmp_path, "--model", model, "--loop", loop, DDPFIX="0")
    assert done.returncode == 0, done.stdout
    stock, cured = done.stdout.split("2. The same under ddpfix")
    assert f"RuntimeError: {verdict.UNFINISHED}" in stock
    assert re.search(r"Failed in step \d+, rank [01]:", stock)
    assert verdict.UNFINISHED not in cured
    assert "\nddpfix 0.1.0: " in cured and "find_unused_parameters=True" in cured
    assert len(re.findall(r"^│ +\d+ │.*│ same +│", cured, re.MULTILINE)) == 20
    assert "DIFFERENT" not in cured
    assert "in the last five" in cured and "identical on all ranks" in cured
    for way in ("import ddpfix.auto", "python -m ddpfix run train.py", "DDPFIX=1 bash"):
        assert way in cured
    # What libraries and the launcher print stays out of sight.
    assert "ChildFailedError" not in done.stdout and "Warning" not in done.stdout
    assert list(tmp_path.iterdir()) == [] and support.processes(tmp_path) == []


@pytest.mark.parametrize(
    ("unused", "complaint"),
    [
        ("off", "the training did not finish: rank"),
        # It trains, but no layer is shared: the record comes from the layers, and is not asked of ddpfix.
        ("find", "the ranks skipped different layers in"),
    ],
)
def test_without_the_cure_it_fails_and_shows_why(
    unused: str,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DDPFIX_LAYERDROP", "stock")
    monkeypatch.setenv("DDPFIX_UNUSED", unused)
    # The first half is the same as in every other test here.
    monkeypatch.setattr(story, "_stock", lambda shown, job: True)
    assert story.show("wavlm", "plain", 20, tmp_path) == 1
    said = capsys.readouterr().out
    assert f"NOT as expected (ddpfix): {complaint}" in said
    # What was hidden is worth reading now.
    assert "----- rank 1" in said
    assert ("ChildFailedError" in said and f"RuntimeError: {verdict.UNFINISHED}" in said) is (unused == "off")
    assert "DIFFERENT" in said
