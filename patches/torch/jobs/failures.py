"""A rank that fails tells all ranks why.

A thread follows each process group of several ranks: :mod:`ddpfix.monitor.exit.process_end` has what it does, and
``monitor/watch.py`` how it begins and ends.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional

from torch import distributed

from ddpfix import log
from ddpfix.exchange.connection import is_torchs
from ddpfix.exchange.keys import default_store
from ddpfix.patching.site import Site
from ddpfix.rules.facts import ENDED, LEFT, UNDONE

from ..pipeline.process_group import Follower, ProcessGroup
from ..pipeline.step_count import Clocks

if TYPE_CHECKING:
    from ddpfix.monitor.watch import Rank, Watch

_PLACE = "failures"


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    """Have the steps of models counted."""
    site.keep(Clocks).follow(site, owner, _PLACE)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    def process_end(store: Any, here: Rank) -> Watch:
        from ddpfix.monitor.exit.process_end import ProcessEnd

        return ProcessEnd(store, here)

    follow(site, module, _PLACE, process_end)


def follow(site: Site, module: ModuleType, place: str, make: Callable[[Any, Rank], Watch]) -> None:
    """Have a thread begin when the process group comes up, or at once where it is up already."""
    site.keep(ProcessGroup).follow(site, module, Watched(site, place, make))


class Watched(Follower):
    """Makes the thread where the group's store can be asked from one, and ends it with the group."""

    def __init__(self, site: Site, place: str, make: Callable[[Any, Rank], Watch]) -> None:
        self.place, self._site, self._make = place, site, make
        self._watch: Optional[Watch] = None

    def up(self) -> None:
        store = default_store()
        if store is None or distributed.get_world_size() == 1:
            return
        self._end(UNDONE)
        if not is_torchs(store):
            log.debug(f"ranks are not monitored: the program supplied the group's store, a {type(store).__name__}")
            return
        try:
            self._watch = self._make(store, self._rank())
            self._watch.begin()
        except Exception as error:
            log.debug(f"this job is not monitored: {error!r}")

    def _rank(self) -> Rank:
        # Not at the head of this file: a process without a group needs none of it.
        from ddpfix.groups.calls import CallCounts
        from ddpfix.monitor.watch import Rank

        clocks = self._site.keep(Clocks)
        called = self._site.keep(CallCounts).read
        return Rank(distributed.get_rank(), distributed.get_world_size(), clocks.step, clocks.work, called)

    def leaving(self) -> None:
        self._end(LEFT)

    def exits(self) -> None:
        self._end(ENDED)

    def undone(self) -> None:
        self._end(UNDONE)

    def _end(self, how: str) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end(how)
