"""The lines that ddpfix logs, and diagnoses that it does not print, as rows of a trace."""

from __future__ import annotations

import time
from typing import Callable, List, Optional, Tuple

from ddpfix import log
from ddpfix.trace import schema
from ddpfix.trace.writer import Writer

# Levels of lines after which the process may end at once.
_URGENT = ("error", "diagnosis")
# Lines that are kept until there is a writer.
_MOST = 1000


class Heard:
    """Listens to the log until :meth:`end`."""

    def __init__(self, is_on: Callable[[], bool], step: Callable[[], int]) -> None:
        self._is_on, self._step = is_on, step
        self._writer: Optional[Writer] = None
        self._held: List[Tuple[str, str, float]] = []
        log.LISTENERS.append(self._line)

    def begin(self, writer: Writer) -> None:
        """Write what was logged before there was a writer, and each line from now on."""
        self._writer = writer
        for level, text, moment in self._held:
            writer.line(schema.EVENT, time=moment, step=0, level=level, text=text)
        self._held.clear()

    def end(self) -> None:
        if self._line in log.LISTENERS:
            log.LISTENERS.remove(self._line)

    def _line(self, level: str, text: str) -> None:
        if not self._is_on():
            return
        if self._writer is None:
            if len(self._held) < _MOST:
                self._held.append((level, text, time.time()))
            return
        self._writer.line(schema.EVENT, time=time.time(), step=self._step(), level=level, text=text)
        if level in _URGENT:
            self._writer.urgent()
