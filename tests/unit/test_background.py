"""Threads of ddpfix that the program does not see."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from ddpfix import background, log


def test_a_thread_of_ours_is_not_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by what it logs: a record of logging asks for the current thread, which threading then lists."""
    logger = logging.Logger("ddpfix")
    logger.addHandler(logging.StreamHandler(sys.stderr))
    monkeypatch.setattr(log, "_logger", lambda: logger)
    before, during = threading.enumerate(), []

    def run() -> None:
        log.error("a line")
        during.extend(threading.enumerate())

    ours = background.Background(run)
    ours.join(20)
    assert during == before == threading.enumerate() and not ours.is_alive()
    assert capsys.readouterr().err == "a line\n" and not log.UNLISTED
