"""What counts as a failure and as a pass, on records and outputs made by hand."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from ddpfix.cli.demo import story
from ddpfix.cli.demo.job import UNFINISHED, Job

LAYERS = ["0", "1", "2"]
PLAIN = f"""some warning
Traceback (most recent call last):
  File "train.py", line 1, in <module>
    main()
RuntimeError: {UNFINISHED} before starting a new one.
Parameter indices which did not receive grad for rank 0: 1 2
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(True, 20, tmp_path)
    made.folder.mkdir()
    made.code = 0
    return made


def record(job: Job, rank: int, change: Optional[Dict[int, Dict[str, Any]]] = None, identical: bool = True) -> None:
    """Twenty good steps of one rank, with some lines changed."""
    lines: List[Dict[str, Any]] = [{"rank": rank, "pid": 1, "layers": LAYERS, "versions": {}}]
    for step in range(1, 21):
        line = {"rank": rank, "step": step, "skipped": ["1"], "loss": 2.0 / step}
        lines.append({**line, **(change or {}).get(step, {})})
    lines.append({"rank": rank, "identical": identical})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    # A line that is being written is not one yet.
    (job.folder / f"rank-{rank}.jsonl").write_text(text + '{"rank": 0, "step"')


def printed(job: Job, rank: int, text: str) -> None:
    folder = job.folder / "logs" / "id" / "attempt_0" / str(rank)
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(text)


def test_a_good_run_passes(job: Job) -> None:
    record(job, 0)
    record(job, 1)
    assert job.complaints() == []


@pytest.mark.parametrize(
    ("change", "identical", "complaint"),
    [
        ({3: {"skipped": []}}, True, "skipped different layers in 1 of 20 steps (first: 3)"),
        ({step: {"loss": 9.0} for step in range(10, 21)}, True, "the loss did not go down"),
        ({}, False, "different parameters"),
        ({20: {"step": 21}}, True, "21 of 20 steps"),
    ],
)
def test_what_is_wrong_is_said(job: Job, change: Dict[int, Dict[str, Any]], identical: bool, complaint: str) -> None:
    record(job, 0)
    record(job, 1, change, identical)
    assert complaint in " ".join(job.complaints())


def test_a_run_without_any_skip_shows_nothing(job: Job) -> None:
    for rank in range(2):
        record(job, rank, {step: {"skipped": []} for step in range(1, 21)})
    assert job.complaints() == ["no layer was ever skipped, so nothing was shown"]


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_the_error_is_the_last_exception_with_its_whole_message(job: Job, prefix: str) -> None:
    printed(job, 0, "".join(prefix + line + "\n" for line in PLAIN.splitlines()))
    first, second = job.error(0).splitlines()
    assert first == f"RuntimeError: {UNFINISHED} before starting a new one." and second.startswith("Parameter indices")


def test_another_error_is_not_the_failure(job: Job) -> None:
    printed(job, 1, PLAIN.replace(UNFINISHED, "No space left on device"))
    job.code = 1
    assert job.first_error() == "rank 1: RuntimeError: No space left on device before starting a new one."


def test_layers_are_shown_side_by_side() -> None:
    assert story.strip(LAYERS, ("1",)) == ". 1 ."
    assert story.strip(LAYERS, None) == "(not reached)"


def test_a_missing_toolkit_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else real(name))
    assert story.show(20) == 2
    assert capsys.readouterr().err == "ddpfix: the demo needs transformers: pip install 'ddpfix[demo]'\n"


def test_one_step_cannot_show_the_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert story.show(1) == 2
    assert capsys.readouterr().err.count("\n") == 1
