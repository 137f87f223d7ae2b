"""How a process has ended that could say nothing itself: by which signal, where the system still knows it.

Linux keeps the exit status of a process until its parent, the launcher, has read it; until then every process of the
same user may read it, too (proc(5), ``/proc/PID/stat``, field 52).
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Optional

# The place of exit_code among the fields that follow the name of the program.
_EXIT_CODE = 49
# What ends a process by these signals, mostly.
_USUAL = {
    "SIGABRT": "gloo does that where ranks call a collective with different sizes, NCCL's watchdog where one has timed"
    " out",
    "SIGKILL": "the system does that where no memory is left",
    "SIGTERM": "a launcher or a scheduler does that to end a job",
    "SIGBUS": "the system does that where /dev/shm is full",
}
_UNKNOWN = (
    "It was ended by a signal or called os._exit; torchrun prints its exit code (-6 is SIGABRT, as of gloo where sizes"
    " differ, -9 SIGKILL, as when the system has no memory left)"
)


def how(pid: int) -> str:
    """Return how a process of this machine has ended, in a sentence; what is not known is not said.

    Args:
        pid: of a process that has exited.
    """
    status = _status(pid)
    if not status:
        return _UNKNOWN
    number = status & 0x7F
    if not number:
        return f"It called os._exit({status >> 8})"
    name = _name(number)
    usual = _USUAL.get(name)
    return f"It was ended by {name}{f': {usual}' if usual else ''}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _status(pid: int) -> Optional[int]:
    """Return the status as ``waitpid`` has it; None or 0 where the system does not tell it, or not any more."""
    if not os.path.isdir("/proc/self"):
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        if fields[0] in ("Z", "X"):
            return int(fields[_EXIT_CODE])
    return None
