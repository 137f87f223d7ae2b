"""A connection of our own to the process group's store, and whether the server is still there.

torch's client writes a warning with the frames of C++ when it finds that the server has ended, as it does in a right
program whose first rank is done before the others. So the socket is looked at before each use.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import weakref
from typing import Any, Optional, Set

from ddpfix.ranks.store import keys

_CLOSED = getattr(select, "POLLRDHUP", 0)


class StoreLostError(ConnectionError):
    """The server behind the store has ended."""


class Connection:
    """Keys of ours, on a connection of their own where torch has that: the main thread may wait with the other one.

    Args:
        store: of the default group; it is not kept alive, see :func:`ddpfix.ranks.store.keys`.
        name: of the keys.
        own: whether to open another connection.
    """

    def __init__(self, store: Any, name: str, own: bool = True) -> None:
        self._name, self._original = name, weakref.ref(store)
        self._clone: Any = None
        before = _sockets() if own else set()
        with contextlib.suppress(Exception):
            self._clone = keys(store, name).clone() if own else None
        new = _sockets() - before if self._clone is not None else set()
        # Another thread may have opened one as well: then nobody knows which is which.
        self._socket: Optional[int] = new.pop() if len(new) == 1 else None

    def is_open(self) -> bool:
        """Whether the group is still there."""
        return self._original() is not None

    def store(self) -> Any:
        """The keys, for the length of a call.

        Raises:
            StoreLostError: the server has ended.
        """
        if self._socket is not None and _is_closed(self._socket):
            raise StoreLostError("the process that kept the process group's store has ended")
        original = self._original()
        return keys(original, self._name) if self._clone is None and original is not None else self._clone

    def close(self) -> None:
        """Give the connection up."""
        self._clone = self._socket = None


def _sockets() -> Set[int]:
    """The sockets of this process."""
    found: Set[int] = set()
    for name in os.listdir("/proc/self/fd") if _CLOSED and os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
    return found


def _is_closed(socket: int) -> bool:
    """Whether the other end has closed it."""
    poll = select.poll()
    poll.register(socket, _CLOSED)
    return bool(poll.poll(0))
