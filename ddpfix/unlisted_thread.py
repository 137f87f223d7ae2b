"""Threads of ddpfix that the program does not see.

Programs join every thread of ``threading.enumerate()``, or wait until ``threading.active_count()`` is 1. So these
threads are started below ``threading``. Nothing that runs in one may call ``threading.current_thread()``, which would
list it.
"""

from __future__ import annotations

import _thread
import threading
from typing import Callable, List, TypeVar

from ddpfix import log
from ddpfix.system import System

_T = TypeVar("_T")


class Background:
    """A thread that runs a function, whose error is logged at the level debug, and ends with the process."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._pid, self._number, self._ended = System.pid(), 0, threading.Event()
        _thread.start_new_thread(self._run, (run,))

    def is_alive(self) -> bool:
        """Return whether it runs; it does not in a forked child."""
        return System.pid() == self._pid and not self._ended.is_set()

    def join(self, seconds: float) -> None:
        """Wait for its end, unless it is the thread that asks."""
        if self.is_alive() and threading.get_ident() != self._number:
            self._ended.wait(seconds)

    def _run(self, run: Callable[[], object]) -> None:
        self._number = number = threading.get_ident()
        log.NOTED.unlisted.add(number)
        try:
            run()
        except Exception as error:
            log.debug(f"a thread of ddpfix has ended: {error!r}")
        finally:
            log.NOTED.unlisted.discard(number)
            self._ended.set()


def answer(ask: Callable[[], _T], seconds: float, otherwise: _T) -> _T:
    """Return ``ask()`` from a thread: a store's client may wait for ever. ``otherwise``: it raised, or takes longer."""
    found: List[_T] = []
    Background(lambda: found.append(ask())).join(seconds)
    return found[0] if found else otherwise
