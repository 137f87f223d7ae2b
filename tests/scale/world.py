"""Many ranks in one process: each has its own client of one real store, and runs ddpfix's own code.

What torch tells a process of its rank and its store is told by the thread here, or by who has the turn. Ranks whose
code waits have a thread each; the others take turns.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import typing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Callable, Iterator, List, Set
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
Count = typing.Counter[str]


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
