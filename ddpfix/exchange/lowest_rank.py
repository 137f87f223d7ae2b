"""A line about what may happen on some ranks only: the lowest rank it happened on logs it, once for all.

Rank 0 logs at once. Another rank leaves its number in the process group's store, unless a lower one is there, and looks
once more after a few seconds, or when its process group or its program ends. This takes two requests of a rank for each
such line, in a thread of ddpfix; nobody waits for anybody. Where the first rank keeps the store and is the first to
end, nobody can be asked any more, and several ranks may log it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, List

from ddpfix import log
from ddpfix.exchange.keys import be_lowest, default_store, keys
from ddpfix.system import System
from ddpfix.unlisted_thread import Background

# Seconds for which a lower rank may still come.
_WAIT = 3.0
# Seconds to two looks at the end of the program, where all ranks have such a line at once: the store may end soon, too.
_LOOKS = (0.1, 0.4)
# Seconds that the end of a process waits for the store.
_SHORT = 1.0
_PENDING: List[_Report] = []


def report(name: str, text: str, warns: bool = False) -> None:
    """Log a line about this rank once, unless a lower rank logs one of the same name, for its kind and its model."""
    if not log.first_time(f"{name}: {text}"):
        return
    (log.warning if warns else log.info)(text)
    store = default_store()
    if store is not None:
        from torch import distributed

        rank = int(distributed.get_rank())
        if not (log.first_rank() and rank):
            _PENDING.append(_Report(store, rank, name, text, warns))


def flush() -> None:
    """Log what is pending: the process group or the program is about to end."""
    while _PENDING:
        pending = _PENDING.pop()
        pending.ends.set()
        pending.thread.join(_SHORT)


class _Report:
    """One line of this rank, and the thread that asks the store."""

    def __init__(self, store: Any, rank: int, name: str, text: str, warns: bool) -> None:
        # Not kept alive: see ddpfix.exchange.keys.
        self._store, self._rank, self._name = weakref.ref(store), rank, f"lowest/{name}"
        self._text, self._warns, self.ends = text, warns, threading.Event()
        self.thread = Background(self._run)

    def _run(self) -> None:
        # The process that keeps the store may have ended; then nobody knows, and the line is not lost.
        is_lowest = self._rank > 0
        with contextlib.suppress(Exception):
            is_lowest = self._is_lowest() and is_lowest
            if is_lowest:
                for pause in _LOOKS if self.ends.wait(_WAIT) else (0.0,):
                    System.pause(pause)
                    is_lowest = is_lowest and self._is_lowest()
        with contextlib.suppress(ValueError):
            _PENDING.remove(self)
        if is_lowest:
            log.from_rank(self._rank, self._text, self._warns)

    def _is_lowest(self) -> bool:
        """Return whether no lower rank has left its number; this one has."""
        store = self._store()
        return store is None or be_lowest(keys(store, self._name), "rank", self._rank) == self._rank
