"""Tests that measure time run alone, also where several workers run tests at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO, Iterator

# One run of pytest has one name, which its workers share. A pytest that a test starts is another run: it would wait for
# a test that waits to be alone, and that one for the test which has started it.
_RUN = os.environ.pop("PYTEST_XDIST_TESTRUNUID", "")


@contextlib.contextmanager
def turn(alone: bool) -> Iterator[None]:
    """Wait until a test may run: one that is to be alone until no other runs, any other until no such one runs.

    Who waits to be alone holds the gate, through which everybody passes, so that others do not go on before it.
    """
    if not _RUN:
        yield
        return
    with _file("gate") as gate, _file("room") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _file(name: str) -> IO[str]:
    return (Path(tempfile.gettempdir()) / f"ddpfix-{_RUN}.{name}").open("w")
