"""Writes the file in which torch elastic looks for the error of a rank: its summary then has the traceback.

A program with ``@record`` writes it; for any other, torchrun's summary says ``error_file: <N/A>``.
"""

from __future__ import annotations

import contextlib
import os

from ddpfix import log
from ddpfix.exchange import failure_records
from ddpfix.exchange.keys import default_store
from ddpfix.monitor.exit import last_words
from ddpfix.patching import tracebacks
from ddpfix.system import System


def announce(error: BaseException) -> None:
    """Leave this rank's error for the others, unless another rank has left one, and for torch elastic."""
    from torch import distributed

    if default_store() is None:
        return
    write(error)
    found = last_words.finding(distributed.get_rank(), None, error)
    for _ in range(2):
        # The death of a data-loader worker is raised by a signal: in the midst of this, perhaps.
        with contextlib.suppress(Exception):
            failure_records.claim(found)
            return


def next_second() -> None:
    """Wait for the next whole second: elastic compares these, and of failures in one second takes the lowest rank's."""
    System.pause(1.05 - System.time() % 1)


def is_wanted() -> bool:
    """Return whether torch elastic looks for a file that is not there yet."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return bool(path) and not os.path.exists(str(path))


def write(error: BaseException) -> bool:
    """Write an error with its traceback, unless there is a file already; returns whether it was written."""
    return write_text(f"{type(error).__name__}: {error}", tracebacks.text(error))


def write_text(message: str, trace: str) -> bool:
    """Return the same for a failure that is no exception any more."""
    if not is_wanted():
        return False
    about = {"py_callstack": trace, "timestamp": str(int(System.time()))}
    path = os.environ["TORCHELASTIC_ERROR_FILE"]
    # As a whole or not at all: the agent may end this process in the midst of it.
    part = f"{path}.{System.pid()}"
    try:
        with System.open(part, "w", encoding="utf-8") as file:
            file.write(System.json({"message": {"message": message, "extraInfo": about}}))
        os.replace(part, path)
    except OSError as problem:
        log.debug(f"{message} could not be reported to torch elastic: {problem!r}")
        with contextlib.suppress(OSError):
            # What a full disk has left of it: torchrun ends with a traceback of its own if it cannot read a file.
            os.remove(part)
        return False
    return True
