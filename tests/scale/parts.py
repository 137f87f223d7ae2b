"""Agreement and the hang watch, with any number of ranks against one store."""

from __future__ import annotations

import contextlib
import functools
import heapq
import operator
import os
import sys
import threading
import time
import traceback
from collections import Counter
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, NamedTuple
from unittest import mock

from torch import distributed

from ddpfix import log
from ddpfix.exchange import keys as stores
from ddpfix.exchange import rendezvous
from ddpfix.monitor import hang as hang
from ddpfix.monitor import loaders
from ddpfix.monitor.watch import Rank
from ddpfix.system import System
from tests.scale.world import Count, World

FACTS = {"version": "0.1.0", "torch.agreement": "applied", "LayerDrop": "the model 0.1"}
SEED = 2**60
# Looks a second of all ranks that wait; a tenth of those of ranks with a process each.
LOOKS = 1000
# Seconds after which a wait that nobody has judged is given up.
_PATIENCE = 600.0


class Part(NamedTuple):
    """What one part took."""

    first: Count  # what the first rank sent
    others: Count  # the most that any other rank sent, each number by itself
    usual: float  # the median of the messages of all ranks
    answers: List[Any]  # what each rank got


def _measured(world: World, act: Callable[[], List[Any]]) -> Part:
    for count in world.counts:
        count.clear()
    answers = act()
    # Of two counters, | is the larger of each number.
    most: Count = functools.reduce(operator.or_, world.counts[1:], Counter())
    usual = median(each["messages"] for each in world.counts if each["messages"])
    return Part(world.counts[0], most, usual, answers)


def agree(world: World, limit: float = 300.0, without: int = 0, differs: int = -1) -> Part:
    """All ranks enter their group and wrap a model.

    The last ``without`` of them have no ddpfix and are waited for for so many seconds; ``differs`` is a rank that does
    something else.
    """

    def rank(number: int) -> Any:
        rendezvous.announce()
        facts = {**FACTS, "LayerDrop": "off"} if number == differs else FACTS
        return rendezvous.meet(rendezvous.Members("all", world.ranks, number), facts, SEED + number, limit)

    # The threads of thousands of ranks share one interpreter here, and would do nothing but look.
    with mock.patch.object(stores, "_LOOKS", LOOKS):
        return _measured(world, lambda: world.together(rank, world.ranks[: world.size - without]))


@contextlib.contextmanager
def _in_a_collective() -> Iterator[Any]:
    """A main thread that stands in a collective of torch's, by the file and the name of the function."""
    waits = "def all_reduce(event):\n    event.wait()\n"
    known: Dict[str, Any] = {}
    exec(compile(waits, distributed.distributed_c10d.__file__, "exec"), known)
    over = threading.Event()
    thread = threading.Thread(target=known["all_reduce"], args=(over,), daemon=True)
    thread.start()
    while not any(each.name == "wait" for each in traceback.extract_stack(_frame(thread))):
        time.sleep(0.01)
    # The processor's time is that of all ranks here; each of them computes nothing where it waits. And a look at the
    # threads of one rank is not to be a look at those of thousands.
    idle = mock.patch.object(System, "process_time", staticmethod(lambda: 0.0))
    frames = {thread.ident: _frame(thread)}
    few = mock.patch.object(sys, "_current_frames", lambda: frames)
    # What is alive in this process is searched once by each rank elsewhere.
    alone = mock.patch.object(loaders, "alive", list)
    with idle, few, alone, mock.patch.object(threading, "main_thread", lambda: thread):
        try:
            yield thread
        finally:
            over.set()


def _frame(thread: threading.Thread) -> Any:
    return sys._current_frames()[thread.ident or 0]


def watch(world: World, limit: float, absent: int = 0, folder: str = "") -> Part:
    """All ranks, which have met, wait in a collective that does not end, until each of them knows what was found.

    So many seconds of waiting are too long; the first ``absent`` ranks never watch; stacks are for the folder.
    """
    answers: List[Any] = []

    def all_ranks() -> List[Any]:
        watches = [_watch(world, rank, limit, folder) for rank in world.ranks[absent:]]
        _take_turns(watches, time.monotonic() + _PATIENCE)
        answers.extend(each._alarm.told if each._alarm else None for each in watches)
        return answers

    # A rank's stacks are those of all threads here, and written once instead.
    quiet = mock.patch.object(hang, "write_stacks", lambda *_: os.path.isdir(folder))
    silent = mock.patch.object(log, "error", lambda *_: None)
    kept = mock.patch.dict(os.environ, {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    with _in_a_collective(), quiet, silent, kept:
        return _measured(world, all_ranks)


def _take_turns(watches: List[Any], last: float) -> None:
    """Run what the thread of each watch runs, at its own pauses, in this one: thousands would wait for each other."""
    assert all(each._begins() for each in watches)
    due = [(time.monotonic() + each._pause(), number) for number, each in enumerate(watches)]
    heapq.heapify(due)
    waiting = set(range(len(watches)))
    while waiting and time.monotonic() < last:
        at, number = heapq.heappop(due)
        time.sleep(max(0.0, at - time.monotonic()))
        each = watches[number]
        each._look()
        if each._alarm and each._alarm.told:
            waiting.discard(number)
        heapq.heappush(due, (time.monotonic() + each._pause(), number))


def _watch(world: World, rank: int, limit: float, folder: str) -> Any:
    # Turns are taken instead of threads.
    world.turn(rank)
    return hang.Monitor(world.stores[rank], Rank(rank, world.size, lambda: 3), limit, folder=folder)
