"""What happens when a process ends whose process group is still up: one handler of atexit, and the order.

Followers of the process group are called in the opposite order of :data:`.order.GROUP`: the watch for hangs ends, then
the rank says how its program has ended, then the ranks that may be waiting for this one at a model learn that it ends
with an error. After all of them multiprocessing's own handler, which was registered earlier, closes a trace where one
is written; processes that multiprocessing has started run no other.
"""

from __future__ import annotations

import atexit
from typing import Callable, Protocol, Sequence

from ddpfix import log
from ddpfix.ranks.store import lowest_rank


class Exiting(Protocol):
    """What is called."""

    @property
    def place(self) -> str: ...

    def exits(self) -> None: ...


class ProcessExit:
    """The handler.

    Args:
        followers: gives those that are called, the first one last.
    """

    def __init__(self, followers: Callable[[], Sequence[Exiting]]) -> None:
        self._followers = followers

    def expect(self) -> None:
        """Register it; functions of the program that were registered before run after it."""
        self.forget()
        atexit.register(self._run)

    def forget(self) -> None:
        """Take it back: the group was destroyed, or the patches are undone."""
        atexit.unregister(self._run)

    def _run(self) -> None:
        lowest_rank.flush()
        for each in reversed(self._followers()):
            try:
                each.exits()
            except Exception as error:
                log.debug(f"{each.place} at the exit: {error!r}")
