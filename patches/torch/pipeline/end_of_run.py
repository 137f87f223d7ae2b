"""What is said of a run when its process group, or its process, ends."""

from __future__ import annotations

from typing import List, Protocol

from ddpfix.ranks.store import lowest_rank
from ddpfix.system import System

from .process_group import Follower


class Ending(Protocol):
    """What speaks then."""

    def at_end(self) -> None: ...


class AtEnd(Follower):
    """Has them speak before the process group ends; a subclass has the place of those of one patch.

    Attributes:
        speakers: in their order.
    """

    def __init__(self) -> None:
        self.speakers: List[Ending] = []
        self._process = System.pid()

    def up(self) -> None:
        self._process = System.pid()

    def leaving(self) -> None:
        # A forked child is no rank, and has the connection of its parent.
        if System.pid() == self._process:
            for each in self.speakers:
                each.at_end()
            lowest_rank.flush()

    def exits(self) -> None:
        self.leaving()
