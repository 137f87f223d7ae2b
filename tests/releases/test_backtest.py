"""What the rule for untested releases would have done, on releases that are made here and on the kept results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from packaging.version import Version

from ddpfix.matrix import loader
from ddpfix.matrix.model import Matrix, Patch, Row, Target
from ddpfix.matrix.ranges import Range
from tests.releases import __main__ as command
from tests.releases import backtest, hashes
from tests.releases.tree import of_folder

# The loop of each release: a parameter more, another body, and a body in which the fault is mended.
LOOPS = {
    "1.0": "def train(model):\n    return model\ndef clip(model):\n    return 1\n",
    "1.1": "def train(model, more=1):\n    return [model]\ndef clip(model):\n    return 2\n",
    "1.2": "def train(model, more=1):\n    return {}\ndef clip(model):\n    return 2\n",
    "2.0": "def train(model, more=1):\n    return {}\ndef clip(model):\n    return 2\n",
}
VERSIONS = tuple(map(Version, LOOPS))


def row(patch: str, place: str, end: str = "3", start: str = "1.0", **more: Any) -> Row:
    inside = tuple(each for each in VERSIONS if Version(start) <= each < Version(end))
    return Row(patch, Range(start, end), "cured", (Target("kit.loop", place),), inside, "why", 1, **more)


def test_each_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "wrapped", lambda: {"kit.loop:train"})
    rows = (
        row("kit.wrapping", "train"),
        row("kit.mended", "train", end="1.2"),
        row("kit.resting", "train", end="1.2", rests_on=("kit.loop:train",)),
        row("kit.changing", "clip"),
    )
    patches = {each.patch: Patch(each.patch, "kit", "kit:fix", None, (), "", ()) for each in rows}
    for version, text in LOOPS.items():
        (tmp_path / version / "kit").mkdir(parents=True)
        (tmp_path / version / "kit" / "loop.py").write_text(text)
    whole = Matrix({"kit": "kit"}, patches, rows)
    found: Dict[str, Dict[str, str]] = {}
    for one in backtest.of(whole, "kit", VERSIONS, lambda version: of_folder("kit", "", tmp_path / str(version))):
        found.setdefault(one.patch, {})[one.release] = one.outcome
    assert found == {
        "kit.wrapping": {"1.1": backtest.RIGHT, "1.2": backtest.RIGHT, "2.0": backtest.HELD},
        "kit.mended": {"1.1": backtest.RIGHT, "1.2": backtest.WRONG},
        "kit.resting": {"1.1": backtest.HELD, "1.2": backtest.LEFT},
        "kit.changing": {"1.1": backtest.HELD, "1.2": backtest.RIGHT, "2.0": backtest.HELD},
    }


def test_the_rule_was_tried_on_every_release_that_we_know() -> None:
    whole, kept = loader.load(), backtest.kept()
    counts = backtest.summed(kept.values())
    assert counts[backtest.WRONG] == 0
    assert counts[backtest.RIGHT] >= 0.9 * (counts[backtest.RIGHT] + counts[backtest.HELD])
    for toolkit in whole.newest:
        released = [str(each) for each in command.versions(whole, toolkit)]
        assert toolkit in kept, f"run: python -m tests.releases backtest {toolkit}"
        assert kept[toolkit].releases == released, f"run: python -m tests.releases backtest {toolkit}"
