"""Processes of this machine: whether one has exited, is stopped, or waits for a disk, and which signal has ended it.

Linux keeps the exit status of a process until its parent, the launcher, has read it; until then every process of the
same user may read it, too (proc(5), ``/proc/PID/stat``, field 52).
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import List, Optional

from ddpfix.exchange.failure_records import Present, space
from ddpfix.system import System

GONE, STOPPED, TRACED, DISK = "Z", "T", "t", "D"
_WORDS = {
    GONE: "has ended",
    STOPPED: "is stopped (SIGSTOP)",
    TRACED: "is held by a debugger",
    DISK: "waits for a disk or a network file system",
}
# The place of exit_code among the fields that follow the name of the program.
_EXIT_CODE = 49
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


def state(pid: int, path: str = "stat") -> str:
    """Return Linux's letter for the state of a process, which ``path`` tells: Z for an exited one; "" if not known."""
    if not os.path.isdir("/proc/self"):
        return ""
    try:
        found = _stat_fields(pid, path)[0]
    except FileNotFoundError:
        return GONE
    except (OSError, IndexError):
        return ""
    return GONE if found == "X" else found


def lasting(pid: int, path: str = "stat") -> str:
    """Return the same, read again where it is a wait for a disk: a page fault ends within a tenth of a second."""
    for _ in range(2):
        found = state(pid, path)
        if found != DISK:
            return found
        System.pause(0.05)
    return state(pid, path)


def state_of(who: Present) -> str:
    """Return the same for the process of a rank; "" for one of another machine or container."""
    return state(who.pid) if who.space and who.space == space() else ""


def in_words(letter: str) -> str:
    """Return a state that is worth a word, in words; "" for the others."""
    return _WORDS.get(letter, "")


def how(pid: int) -> str:
    """Return how a process of this machine has ended, in a sentence; what is not known is not said."""
    # As waitpid has it: None or 0 where the system does not tell it, or not any more.
    status: Optional[int] = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = _stat_fields(pid)
        status = int(fields[_EXIT_CODE]) if fields[0] in (GONE, "X") else None
    if not status:
        return _UNKNOWN
    number = status & 0x7F
    if not number:
        return f"It exited with code {status >> 8} past the end of its program (os._exit, or exit in C)"
    name = f"signal {number}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(number).name
    usual = _USUAL.get(name)
    return f"It was ended by {name}{f', {usual}' if usual else ''}"


def _stat_fields(pid: int, path: str = "stat") -> List[str]:
    """Return the fields behind the name of a process's program, the letter of its state first, or raise OSError."""
    with System.open(f"/proc/{pid}/{path}", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
