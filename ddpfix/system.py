"""Python's clocks and the like, as they were when ddpfix was imported.

A program may freeze its clocks (freezegun, a test of its own), have them jump, or count the calls of ``time.sleep``,
``json.dumps`` or ``os.getpid``: none of that is meant for ddpfix.
"""

from __future__ import annotations

import _thread
import io
import json
import os
import socket
import time
from typing import Any, Union

_ENCODER, _DECODER = json.JSONEncoder(), json.JSONDecoder()


class System:
    """These functions. freezegun replaces them where a module has a name for one, but not in a class."""

    monotonic = staticmethod(time.monotonic)
    process_time = staticmethod(time.process_time)
    perf_counter = staticmethod(time.perf_counter)
    time = staticmethod(time.time)
    pid = staticmethod(os.getpid)
    host = staticmethod(socket.gethostname)
    fstat = staticmethod(os.fstat)
    listdir = staticmethod(os.listdir)
    open = staticmethod(io.open)
    json = staticmethod(_ENCODER.encode)

    @staticmethod
    def loads(text: Union[str, bytes]) -> Any:
        """Return what a text of :attr:`json` stands for."""
        return _DECODER.decode(text if isinstance(text, str) else text.decode())

    @staticmethod
    def pause(seconds: float) -> None:
        """Sleep, on a lock that nobody releases."""
        lock = _thread.allocate_lock()
        lock.acquire()
        lock.acquire(timeout=max(0.0, seconds))


class Wait:
    """A wait: how long it has taken, also where the clock stood still before ddpfix was imported."""

    def __init__(self) -> None:
        self._begun, self._paused = System.monotonic(), 0.0

    def pause(self, seconds: float) -> None:
        """Sleep, as a part of this wait."""
        System.pause(seconds)
        self._paused += seconds

    def seconds(self) -> float:
        """Return how long it has taken so far."""
        return max(System.monotonic() - self._begun, self._paused)
