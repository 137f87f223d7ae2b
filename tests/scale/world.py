"""Many ranks in one process: each has its own client of one real store, and runs ddpfix's own code.

What torch tells a process of its rank and its store is told by the thread here, or by who has the turn. Ranks whose
code waits have a thread each; the others take turns.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Callable, Iterator, List, Set, Tuple
from unittest import mock

from torch import distributed
from torch.distributed import distributed_c10d

from ddpfix.groups import internals

# A store of torch and its clients look up the names of their addresses when they connect, and where no name server
# answers, one in 25 of them waits 5 s for it. With these settings of the resolver it gives up early.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
# Files that this process needs besides its connections.
_OTHER_FILES = 256
_CONNECTIONS = 4096
# Clients that are made at the same time.
_AT_ONCE = 64
_STACK = 512 * 1024


class Count:
    """The traffic of one rank with the store.

    A question that is sent again does not count: how many there are is a matter of time.

    Attributes:
        messages: that were sent.
        bytes: of the keys and values in both directions.
    """

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self._asked: Set[Tuple[Any, ...]] = set()

    def one(self, asks: bool, words: Tuple[Any, ...], answer: Any) -> Any:
        """Count one message and its answer."""
        if asks and words in self._asked:
            return answer
        if asks:
            self._asked.add(words)
        self.messages += 1
        self.bytes += _size(words[1:]) + _size(answer)
        return answer

    def __sub__(self, other: Count) -> Count:
        found = Count()
        found.messages, found.bytes = self.messages - other.messages, self.bytes - other.bytes
        return found

    def now(self) -> Count:
        """A copy of the numbers."""
        return self - Count()


def _size(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(_size, value))
    return 8 if isinstance(value, (int, type(None))) else len(value)


class Counted(distributed.Store):  # type: ignore[misc]
    """One rank's client of the real store.

    Args:
        inner: a connection to the server.
        count: of the rank.
    """

    def __init__(self, inner: Any, count: Count) -> None:
        super().__init__()
        self.inner, self.count = inner, count
        # torch holds the C++ half of these only.
        self._clones: List[Counted] = []

    def set(self, key: str, value: Any) -> None:
        self.count.one(False, ("set", key, value), self.inner.set(key, value))

    def get(self, key: str) -> Any:
        return self.count.one(True, ("get", key), self.inner.get(key))

    def add(self, key: str, number: int) -> Any:
        return self.count.one(not number, ("add", key, number), self.inner.add(key, number))

    def check(self, keys: Any) -> Any:
        return self.count.one(True, ("check", *keys), self.inner.check(keys))

    def compare_set(self, key: str, expected: Any, wanted: Any) -> Any:
        answer = self.inner.compare_set(key, expected, wanted)
        return self.count.one(False, ("compare_set", key, expected, wanted), answer)

    def multi_get(self, keys: Any) -> Any:
        return self.count.one(True, ("multi_get", *keys), self.inner.multi_get(keys))

    def delete_key(self, key: str) -> Any:
        return self.count.one(False, ("delete", key), self.inner.delete_key(key))

    # The name under which torch asks a store that is written in Python.
    deleteKey = delete_key

    def clone(self) -> Counted:
        self._clones.append(Counted(self.inner.clone(), self.count))
        return self._clones[-1]


class World:
    """Ranks of one job.

    Args:
        size: how many there are.
    """

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
        self.counts = [Count() for _ in self.ranks]
        self.stores = [Counted(clients[rank % len(clients)], self.counts[rank]) for rank in self.ranks]
        self._turn = threading.local()

    def _client(self) -> Any:
        return distributed.TCPStore("127.0.0.1", self._server.port, is_master=False, timeout=timedelta(minutes=5))

    @property
    def rank(self) -> int:
        """The rank whose code runs in this thread."""
        return int(self._turn.rank)

    @contextlib.contextmanager
    def turn(self, rank: int) -> Iterator[None]:
        """Be a rank in this thread."""
        self._turn.rank = rank
        yield

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """Have torch's functions tell each thread its own rank and store."""
        told = {
            "get_rank": lambda *_: self.rank,
            "get_world_size": lambda *_: self.size,
            "get_process_group_ranks": lambda *_: self.ranks,
        }
        with contextlib.ExitStack() as stack:
            for name, tell in told.items():
                stack.enter_context(mock.patch.object(distributed, name, tell))
            stack.enter_context(mock.patch.object(distributed_c10d, "_get_default_store", self._store))
            # As where torch has made the group, and its store.
            stack.enter_context(mock.patch.object(internals, "is_torchs", lambda _: True))
            stack.enter_context(mock.patch.object(distributed_c10d, "_default_pg_init_method", "env://"))
            yield

    def _store(self) -> Any:
        return self.stores[self.rank]

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
        with self.turn(rank):
            try:
                found[rank] = act(rank)
            except Exception as error:
                found[rank] = error

    def counted(self) -> List[Count]:
        """What each rank has sent so far."""
        return [count.now() for count in self.counts]
