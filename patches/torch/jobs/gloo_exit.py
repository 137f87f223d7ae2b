"""A process leaves only when the threads of gloo have let go of their last work (pytorch issues 190489 and 117762).

A thread of gloo frees what belongs to a collective after it has told the main thread that the collective is over. A
part of that are Python objects (since torch 2.11 the context of the backward that issued it, pull request 173568; the
memory of a tensor that numpy lent), for which the thread needs the GIL. If the interpreter has begun to end by then,
CPython ends the thread, which C++ takes for a fault: "terminate called without an active exception", SIGABRT, and torch
elastic reports a job as failed whose work is done. Whether it happens depends on fractions of a millisecond, which any
change of the process moves, ddpfix too. From CPython 3.14 on such a thread stands still until the process has gone
(https://github.com/python/cpython/issues/87135), and nothing is done here.
"""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType
from typing import Any, List, NamedTuple

from torch.torch_version import TorchVersion, __version__

from ddpfix.background import NATIVE
from ddpfix.patching.site import Site
from ddpfix.system import System, Wait

from ..pipeline.process_group import Follower, ProcessGroup

# Seconds: what a thread gets that only waits for the GIL, between two looks, and in all; the last is of the processor's
# time, because on a machine with much to do a thread that is about to be ready gets little of it.
_SHORT, _PAUSE, _LIMIT = 0.01, 0.002, 1.0
# Seconds of the clock after which the process leaves in any case.
_LONGEST = 10.0
# The name of the threads that run gloo's work; releases as late as 2.4 give them none, so that all are looked at. From
# the release on whose library was seen to have it, a process without such a thread has nothing to wait for: those of
# NCCL, CUDA and OpenMP are not gloo's.
_NAME, _NAMED = "pt_gloo_runloop", TorchVersion(__version__) >= "2.13"
_THREADS = "/proc/self/task"
# Whether the interpreter ends a thread that asks for the GIL too late.
ENDS_THREADS = sys.version_info < (3, 14)


class Exit(Follower):
    """Has the process wait at its exit, or when its groups are destroyed."""

    place = "gloo_exit"

    def destroyed(self) -> None:
        if ENDS_THREADS:
            settle()

    def exits(self) -> None:
        if ENDS_THREADS:
            settle()


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Follow the process group."""
    site.keep(ProcessGroup).follow(site, module, Exit())


def settle() -> None:
    """Leave the GIL to gloo's threads until none of them runs.

    It takes 10 ms, until threads that go on running have had 1 s of the processor (10 s of the clock at most), and
    nothing where no thread is left. A collective that waits for another rank is not waited for.
    """
    wait, had = Wait(), _had()
    while _any_left():
        wait.pause(_PAUSE)
        waited = wait.seconds()
        if waited > _SHORT and ("R" not in _states() or _had() - had > _LIMIT or waited > _LONGEST):
            return


def _any_left() -> bool:
    """Return whether threads may still have work: where they cannot be seen, they may."""
    return bool(_states()) or not os.path.isdir(_THREADS)


def _states() -> List[str]:
    """Return the state of each thread that may be gloo's, as Linux tells it (``R`` is running or ready to run)."""
    return [thread.state for thread in _threads()]


def _had() -> float:
    """Seconds of the processor that these threads have had."""
    return sum(thread.seconds for thread in _threads())


class _Thread(NamedTuple):
    """What Linux tells of a thread.

    Attributes:
        name: of the thread; empty if it has ended.
        state: ``R`` is running or ready to run.
        seconds: of the processor.
    """

    name: str
    state: str
    seconds: float


def _threads() -> List[_Thread]:
    """Return the threads that may be gloo's."""
    threads = [_look(each) for each in _others()]
    named = [each for each in threads if each.name == _NAME]
    return named if named or _NAMED else [each for each in threads if each.state]


def _others() -> List[int]:
    """Return the threads of this process that are neither Python's nor ours."""
    # In a forked child CPython still tells the number of the parent's main thread.
    known = {thread.native_id for thread in threading.enumerate()} | NATIVE | {threading.get_native_id()}
    listed = System.listdir(_THREADS) if os.path.isdir(_THREADS) else []
    return [int(each) for each in listed if int(each) not in known]


def _look(thread: int) -> _Thread:
    try:
        with System.open(f"{_THREADS}/{thread}/stat", encoding="utf-8", errors="replace") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
    except OSError:
        # It has ended since.
        return _Thread("", "", 0.0)
    fields = rest.split()
    # The twelfth and the thirteenth behind the name: in the program, and in the system for it.
    return _Thread(name, fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
