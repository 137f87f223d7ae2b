"""A connection of our own to the process group's store, and whether the server is still there.

torch's client writes a warning with the frames of C++ when it finds that the server has ended, as it does in a right
program whose first rank is done before the others. So the socket is looked at before each use.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import weakref
from typing import Any, Dict, List, Optional, Tuple

from ddpfix.exchange.keys import job
from ddpfix.system import System
from ddpfix.unlisted_thread import Background

# Seconds in which a server takes or refuses a connection; and in which torch's client has made one to a busy server.
_SLOW, _BUSY = 2.0, 10.0
# Seconds between two looks whether the server is still there.
_LOOK = 0.1
_CLOSED = getattr(select, "POLLRDHUP", 0)


class StoreLostError(ConnectionError):
    """The server behind the store has ended."""


class Connection:
    """The keys of the job, on a separate connection where torch has that: the main thread may wait with the other one.

    The default group's store is not kept alive, see :func:`ddpfix.exchange.keys`.
    """

    def __init__(self, store: Any, own: bool = True) -> None:
        self._original = weakref.ref(store)
        self._clone: Any = None
        before = _sockets(_port(store)) if own else {}
        # The first rank, which keeps the store, may be done with the group before this one has come so far.
        self._is_lost = own and _has_ended(store)
        if own and not self._is_lost:
            self._copy(job(store))
        new = set(_sockets(_port(self._clone)).items()) - set(before.items())
        # Another thread may have opened one as well: then nobody knows which is which.
        self._socket: Optional[Tuple[int, int]] = new.pop() if len(new) == 1 else None

    def _copy(self, store: Any) -> None:
        """Open the connection in a thread: torch's client tries a server that has ended as long as collectives wait."""
        copies: List[Any] = []

        def copy() -> None:
            with contextlib.suppress(Exception):
                copies.append(store.clone())

        made = Background(copy)
        for _ in range(int(_BUSY / _LOOK)):
            made.join(_LOOK)
            if not made.is_alive() or _has_ended(store):
                break
        self._is_lost = made.is_alive()
        self._clone = copies[0] if copies else None

    def is_open(self) -> bool:
        """Return whether the group is still there."""
        return self._original() is not None

    def store(self) -> Any:
        """Return the keys, for the length of a call; StoreLostError: the server has ended."""
        if self._is_lost or (self._socket is not None and _is_closed(*self._socket)):
            raise StoreLostError("the process that hosted the process group's store has exited")
        original = self._original()
        return job(original) if self._clone is None and original is not None else self._clone

    def close(self) -> None:
        self._clone = self._socket = None


def is_torchs(store: Any) -> bool:
    """Return whether a store is torch's own; no thread of ddpfix runs the methods of a program's store."""
    return type(_base(store)).__module__.startswith("torch._C")


def _base(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _port(store: Any) -> Optional[int]:
    """Return the port of the server behind a store; None for one that is no server's."""
    return getattr(_base(store), "port", None)


def _has_ended(store: Any) -> bool:
    """Return whether the server behind a store refuses connections; a slow answer is none, it may have much to do."""
    base = _base(store)
    host, port = getattr(base, "host", None), _port(base)
    if host is None or port is None:
        return False
    try:
        socket.create_connection((host, port), _SLOW).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _sockets(port: Optional[int]) -> Dict[int, int]:
    """Return the descriptors of this process's connections to a port, by the number that the system gives each once."""
    found: Dict[int, int] = {}
    names: List[str] = []
    with contextlib.suppress(OSError):
        names = System.listdir("/proc/self/fd") if _CLOSED and port else names
    for name in names:
        with contextlib.suppress(OSError, IndexError, TypeError):
            about = System.fstat(int(name))
            if stat.S_ISSOCK(about.st_mode):
                with socket.socket(fileno=os.dup(int(name))) as other:
                    if other.getpeername()[1] == port:
                        found[about.st_ino] = int(name)
    return found


def _is_closed(number: int, descriptor: int) -> bool:
    """Return whether the other end has closed a socket; False where the descriptor is another one's by now."""
    with contextlib.suppress(OSError):
        if System.fstat(descriptor).st_ino == number:
            poll = select.poll()
            poll.register(descriptor, _CLOSED)
            return bool(poll.poll(0))
    return False
