"""Agreement and the hang watch of many ranks in one process: each has its own client of one real store.

They run ddpfix's own code. What torch tells a process of its rank and its store is told by the thread here, or by who
has the turn. Ranks whose code waits have a thread each; the others take turns.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import operator
import os
import resource
import sys
import threading
import time
import traceback
import typing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Set
from unittest import mock

from torch import distributed
from torch.distributed import distributed_c10d

from ddpfix import log
from ddpfix.exchange import keys as stores
from ddpfix.exchange import rendezvous
from ddpfix.groups import internals
from ddpfix.monitor import hang, loaders
from ddpfix.monitor.watch import Rank
from ddpfix.system import System

# A store of torch and its clients look up the names of their addresses when they connect, and where no name server
# answers, one in 25 of them waits 5 s for it. With these settings of the resolver it gives up early.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
# Files that this process needs besides its connections.
_OTHER_FILES = 256
_CONNECTIONS = 4096
# Clients that are made at the same time.
_AT_ONCE = 64
_STACK = 512 * 1024
Count = typing.Counter[str]
FACTS = {"version": "0.1.0", "torch.agreement": "applied", "LayerDrop": "the model 0.1"}
SEED = 2**60
# Looks a second of all ranks that wait; a tenth of those of ranks with a process each.
LOOKS = 1000
# Seconds after which a wait that nobody has judged is given up.
_PATIENCE = 600.0


def _size(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(_size, value))
    return 8 if isinstance(value, (int, type(None))) else len(value)


class Counted(distributed.Store):  # type: ignore[misc]
    """One rank's client of the real store.

    A question that is sent again does not count: how many there are is a matter of time.

    Args:
        inner: a connection to the server.
        count: of the rank: messages that were sent, bytes of the keys and values in both directions.
        asked: by the rank so far.
    """

    def __init__(self, inner: Any, count: Count, asked: Set[Any]) -> None:
        super().__init__()
        self.inner, self.count, self.asked = inner, count, asked
        # torch holds the C++ half of these only.
        self._clones: List[Counted] = []

    def _sent(self, name: str, *words: Any, asks: bool = False) -> Any:
        """Send one message, and count it with its answer."""
        answer = getattr(self.inner, name)(*words)
        question = repr((name, words))
        if not asks or question not in self.asked:
            self.count.update(messages=1, bytes=_size(words) + _size(answer))
        if asks:
            self.asked.add(question)
        return answer

    def set(self, key: str, value: Any) -> None:
        self._sent("set", key, value)

    def get(self, key: str) -> Any:
        return self._sent("get", key, asks=True)

    def add(self, key: str, number: int) -> Any:
        return self._sent("add", key, number, asks=not number)

    def check(self, keys: Any) -> Any:
        return self._sent("check", keys, asks=True)

    def compare_set(self, key: str, expected: Any, wanted: Any) -> Any:
        return self._sent("compare_set", key, expected, wanted)

    def multi_get(self, keys: Any) -> Any:
        return self._sent("multi_get", keys, asks=True)

    def delete_key(self, key: str) -> Any:
        return self._sent("delete_key", key)

    # The name under which torch asks a store that is written in Python.
    deleteKey = delete_key

    def clone(self) -> Counted:
        self._clones.append(Counted(self.inner.clone(), self.count, self.asked))
        return self._clones[-1]


class World:
    """The ranks of one job."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranks = list(range(size))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        # Where there may be fewer files than ranks, some share a connection, as the threads of one rank do. A client
        # may be cloned, and the server, which is here as well, has the other end of both.
        self.connections = min(size, (hard - _OTHER_FILES) // 4, _CONNECTIONS)
        self._server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            clients = list(pool.map(lambda _: self._client(), range(self.connections)))
        self.counts: List[Count] = [Counter() for _ in self.ranks]
        self.stores = [Counted(clients[rank % len(clients)], self.counts[rank], set()) for rank in self.ranks]
        self._turn = threading.local()

    def _client(self) -> Any:
        return distributed.TCPStore("127.0.0.1", self._server.port, is_master=False, timeout=timedelta(minutes=5))

    @property
    def rank(self) -> int:
        """The rank whose code runs in this thread."""
        return int(self._turn.rank)

    def turn(self, rank: int) -> None:
        """Be a rank in this thread."""
        self._turn.rank = rank

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """Have torch's functions tell each thread its own rank and store."""
        told = mock.patch.multiple(
            distributed,
            get_rank=lambda *_: self.rank,
            get_world_size=lambda *_: self.size,
            get_process_group_ranks=lambda *_: self.ranks,
        )
        # As where torch has made the group, and its store.
        made = mock.patch.multiple(
            distributed_c10d, _get_default_store=lambda: self.stores[self.rank], _default_pg_init_method="env://"
        )
        with told, made, mock.patch.object(internals, "is_torchs", lambda _: True):
            yield

    def together(self, act: Callable[[int], Any], ranks: List[int]) -> List[Any]:
        """What each of some ranks gets, or raises, from a function that may wait for the others."""
        found: List[Any] = [None] * self.size
        threads = [threading.Thread(target=self._one, args=(act, rank, found), daemon=True) for rank in ranks]
        before = threading.stack_size(_STACK)
        for thread in threads:
            thread.start()
        threading.stack_size(before)
        for thread in threads:
            thread.join()
        return [found[rank] for rank in ranks]

    def _one(self, act: Callable[[int], Any], rank: int, found: List[Any]) -> None:
        self.turn(rank)
        try:
            found[rank] = act(rank)
        except Exception as error:
            found[rank] = error


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
        watches = []
        # Turns are taken instead of threads.
        for rank in world.ranks[absent:]:
            world.turn(rank)
            here = Rank(rank, world.size, lambda: 3)
            watches.append(hang.Monitor(world.stores[rank], here, limit, folder=folder))
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
