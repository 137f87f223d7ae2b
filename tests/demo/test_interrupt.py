"""However the demo is ended, no process and no file of it is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import pytest

from tests.demo import support
from tests.support import signals

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks in /proc")


def until(true: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


@pytest.mark.sampled(inside=False)
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
    child = subprocess.Popen(
        support.command(),
        cwd=tmp_path,
        env=support.environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=signals.foreground,
    )
    assert until(lambda: list(tmp_path.glob(awaited)) != [], 90)
    assert until(lambda: support.processes(tmp_path) != [], 10)
    child.send_signal(number)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == code, output
    assert "Traceback" not in output
    assert support.processes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
