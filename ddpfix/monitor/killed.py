"""How a process has ended that could say nothing itself: by which signal, where the system still knows it.

Linux keeps the exit status of a process until its parent, the launcher, has read it; until then every process of the
same user may read it, too (proc(5), ``/proc/PID/stat``, field 52).
"""

from __future__ import annotations

import contextlib
import signal
from typing import List, Optional

from ddpfix.system import System

# The place of exit_code among the fields that follow the name of the program.
_EXIT_CODE = 49
# The letters of a process that has exited, and that its parent has not seen to.
ENDED = ("Z", "X")
# What ends a process by these signals, mostly.
_USUAL = {
    "SIGABRT": "as when gloo receives different sizes, or NCCL's watchdog finds a time-out",
    "SIGKILL": "as when the system runs out of memory",
    "SIGTERM": "as when a launcher or a scheduler ends the job",
    "SIGBUS": "as when /dev/shm is full",
}
_UNKNOWN = (
    "It was ended by a signal (by the launcher, where that was stopped) or called os._exit: see the exit code that"
    " torchrun prints (-9: out of memory)"
)


def how(pid: int) -> str:
    """Return how a process of this machine has ended, in a sentence; what is not known is not said."""
    status = _status(pid)
    if not status:
        return _UNKNOWN
    number = status & 0x7F
    if not number:
        return f"It exited with code {status >> 8} past the end of its program (os._exit, or exit in C)"
    name = _name(number)
    usual = _USUAL.get(name)
    return f"It was ended by {name}{f', {usual}' if usual else ''}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _status(pid: int) -> Optional[int]:
    """Return the status as ``waitpid`` has it; None or 0 where the system does not tell it, or not any more."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = stat_fields(pid)
        if fields[0] in ENDED:
            return int(fields[_EXIT_CODE])
    return None


def stat_fields(pid: int, path: str = "stat") -> List[str]:
    """Return the fields behind the name of a process's program, the letter of its state first, or raise OSError."""
    with System.open(f"/proc/{pid}/{path}", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
