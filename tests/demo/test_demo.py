"""The demo with real ranks: it shows the failure and the fix, says when the fix is not there, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from ddpfix import __version__
from ddpfix.cli.demo import story
from ddpfix.cli.demo.job import UNFINISHED
from tests.support import ranks

ROOT = Path(__file__).resolve().parents[2]
WHOLE = pytest.mark.sampled(inside=False)
COMMAND = [sys.executable, "-m", "ddpfix", "demo"]


def started(folder: Path, **more: str) -> Dict[str, Any]:
    """How a user starts it, without settings of ddpfix; its temporary folder comes to lie in ``folder``."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    environ = {**environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **more}
    return {"cwd": folder, "env": environ, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def processes(folder: Path) -> List[str]:
    """The command lines, of any process, that name this folder: launchers and ranks of a demo that uses it."""
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            commands.append(words)
    return commands


def until(true: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


@WHOLE
def test_the_unpatched_toolkit_fails_and_ddpfix_trains(tmp_path: Path) -> None:
    # A reader's own switch must not turn the demo into something else.
    done = subprocess.run(COMMAND, timeout=240, **started(tmp_path, DDPFIX="0"))
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
    assert list(tmp_path.iterdir()) == [] and processes(tmp_path) == []


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


@WHOLE
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks in /proc")
@pytest.mark.parametrize(
    ("number", "awaited", "code"),
    [
        # The launcher has its signal handlers, and both ranks are there to be ended.
        (signal.SIGINT, "ddpfix-demo-*/unpatched/rank-1.jsonl", 130),
        # The launcher is still importing.
        (signal.SIGTERM, "ddpfix-demo-*/unpatched/launcher.log", 143),
    ],
)
def test_a_signal_ends_everything(number: signal.Signals, awaited: str, code: int, tmp_path: Path) -> None:
    child = subprocess.Popen(COMMAND, start_new_session=True, preexec_fn=ranks.foreground, **started(tmp_path))
    assert until(lambda: list(tmp_path.glob(awaited)) != [], 90)
    assert until(lambda: processes(tmp_path) != [], 10)
    child.send_signal(number)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == code, output
    assert "Traceback" not in output
    assert processes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
