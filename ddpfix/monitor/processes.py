"""Processes of this machine: whether one has exited, is stopped, or waits for a disk."""

from __future__ import annotations

import contextlib
import os
from typing import List

from ddpfix.exchange.presence import Present, space
from ddpfix.monitor import killed
from ddpfix.system import System

GONE, STOPPED, TRACED, DISK = "Z", "T", "t", "D"
_WORDS = {
    GONE: "has ended",
    STOPPED: "is stopped (SIGSTOP)",
    TRACED: "is held by a debugger",
    DISK: "waits for a disk or a network file system",
}


def state(pid: int, path: str = "stat") -> str:
    """Return Linux's letter for the state of a process, which ``path`` tells: Z for an exited one; "" if not known."""
    if not os.path.isdir("/proc/self"):
        return ""
    try:
        found = killed.stat_fields(pid, path)[0]
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


def is_gone(who: Present) -> bool:
    """Return whether the process has certainly exited; one on another machine, or in a container, is not known."""
    return state_of(who) == GONE


def in_words(letter: str) -> str:
    """Return a state that is worth a word, in words; "" for the others."""
    return _WORDS.get(letter, "")


def own_trouble(thread: int) -> str:
    """Return this process's obstacle as far as the system knows: its main thread waits for a disk, a child stopped."""
    told: List[str] = []
    if lasting(System.pid(), f"task/{thread}/stat") == DISK:
        told.append(f"it {in_words(DISK)}")
    with contextlib.suppress(OSError):
        with System.open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
            children = file.read().split()
        for child in children:
            found = state(int(child))
            if found in (STOPPED, TRACED):
                told.append(f"its child process {child} {in_words(found)}")
    return "; ".join(told)
