"""What a trace has beside its rows: of the run that begins, what ddpfix logs, and of the end."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import distributed

from ddpfix import __version__, log
from ddpfix.monitor.exit import last_words
from ddpfix.patching.site import Site
from ddpfix.rules import endings
from ddpfix.trace import schema
from ddpfix.trace.writer import Writer

# The messages of ddpfix's own errors begin with it.
_OWN = "ddpfix: "
# Levels of lines after which the process may end at once.
_URGENT = ("error", "diagnosis")
# Lines that are kept until there is a writer.
_MOST = 1000


def run(site: Site, rank: int) -> Dict[str, Any]:
    """Return the values of the ``run`` line."""
    grouped = distributed.is_available() and distributed.is_initialized()
    report, found = site.activation.report() if site.activation is not None else None, site.settings
    patches = [each for each in report.patches if each.version is not None] if report else []
    return {
        "version": schema.VERSION,
        "rank": rank,
        "world_size": distributed.get_world_size() if grouped else int(os.environ.get("WORLD_SIZE", "1")),
        "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": time.time(),
        "ddpfix": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "toolkits": {name: str(version) for name, version in report.toolkits.items() if version} if report else {},
        "command": " ".join(shlex.quote(word) for word in sys.argv),
        "settings": {
            name: {"value": str(value), "from": str(found.sources.get(name, "default"))}
            for name, value in found.values.items()
        },
        "patches": [{"id": each.id, "state": str(each.state), "reason": each.reason} for each in patches],
    }


def tell_settings(writer: Writer, known: Dict[str, Any]) -> Dict[str, Any]:
    """Write a line for each setting of a toolkit that is not known as it is now; returns all of them."""
    for name, (requested, effective, note) in log.NOTED.settings.items():
        if known.get(name) != (requested, effective, note):
            writer.line(schema.SETTING, name=name, requested=requested, effective=effective, note=note)
    return dict(log.NOTED.settings)


def close(writer: Writer, step: int) -> None:
    """Write how this process ends, as far as Python knows it: ``ended``, or ``failed: `` and the error."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    printed = last_words.printed()
    how, found = "ended", None
    if isinstance(error, BaseException) and not isinstance(error, SystemExit):
        # Not its str(), which is the program's own code where the class is.
        message = error.args[0] if error.args else None
        if isinstance(message, str) and message.startswith(_OWN):
            # The whole of it: how the process ends has the first line.
            writer.line(schema.EVENT, time=time.time(), step=step, level="diagnosis", text=message[len(_OWN) :])
        how, found = f"failed: {last_words.words(error)}", last_words.finding(writer.rank, None, error)
    elif printed is not None:
        how = f"failed: {printed.words}"
        found = endings.failed([writer.rank], None, printed.words, follows=printed.follows)
    writer.close(how, None if found is None else found.data())


class Heard:
    """Has the lines that ddpfix logs, and diagnoses that it does not print, as rows of a trace until :meth:`end`."""

    def __init__(self, is_on: Callable[[], bool], step: Callable[[], int]) -> None:
        self._is_on, self._step = is_on, step
        self._writer: Optional[Writer] = None
        self._held: List[Dict[str, Any]] = []
        log.NOTED.listeners.append(self._line)

    def begin(self, writer: Writer) -> None:
        """Write what was logged before there was a writer, and each line from now on."""
        self._writer = writer
        for held in self._held:
            writer.line(schema.EVENT, **held)
        self._held.clear()

    def end(self) -> None:
        if self._line in log.NOTED.listeners:
            log.NOTED.listeners.remove(self._line)

    def _line(self, level: str, text: str, finding: Optional[Dict[str, Any]]) -> None:
        if not self._is_on():
            return
        values: Dict[str, Any] = {"time": time.time(), "step": self._step(), "level": level, "text": text}
        if finding is not None:
            values["finding"] = finding
        if self._writer is None:
            if len(self._held) < _MOST:
                self._held.append({**values, "step": 0})
            return
        self._writer.line(schema.EVENT, **values)
        if level in _URGENT:
            self._writer.urgent()
