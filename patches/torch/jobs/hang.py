"""A job that hangs says which rank is late, wherever there is a process group; :mod:`ddpfix.ranks.hang` has how."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional

from ddpfix.patching.site import Site

from . import failures
from .world import World

if TYPE_CHECKING:
    from ddpfix.ranks.hang.watch import Watch


class Watching:
    """The watch of one activation.

    Attributes:
        world: follows the process group of all ranks.
    """

    def __init__(self) -> None:
        self.world = World(self._make, self._end, self._leave)
        self._watch: Optional[Watch] = None
        # Makes the watch from the store, this rank and the number of ranks.
        self._watch_of: Optional[Callable[[Any, int, int], Watch]] = None

    def set(self, site: Site) -> None:
        """Take the limits, the folder for stacks, and what counts steps."""
        self._watch_of = functools.partial(_watch, site, site.keep(failures.Failing))

    def _make(self, store: Any, rank: int, size: int) -> None:
        if self._watch_of is not None:
            self._watch = self._watch_of(store, rank, size)

    def _leave(self) -> None:
        self._end("ended")

    def _end(self, how: str) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end(how)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Watch from when the process group comes up, or at once where it is up already."""
    if site.settings["hang"] == "off":
        return
    watching = site.keep(Watching)
    watching.set(site)
    watching.world.follow(site, module)


def group_end(site: Site, module: ModuleType, owner: Any) -> None:
    """A rank that leaves its process group says so."""
    if site.settings["hang"] != "off":
        site.keep(Watching).world.follow_end(site, module)


def _watch(site: Site, failing: failures.Failing, store: Any, rank: int, size: int) -> Watch:
    # Not at the head of this file: a process without a group needs none of it.
    from ddpfix.ranks.hang.watch import Limits, Watch

    limits = Limits(*_seconds(site))
    return Watch(store, rank, size, failing.step, limits, _folder(site), failing.micro)


def _seconds(site: Site) -> Any:
    after = site.settings["hang_exit"]
    return float(site.settings["hang"]), None if after == "off" else float(after)


def _folder(site: Site) -> str:
    """The user's own folder for what ddpfix writes, if there is such a setting."""
    found = site.settings.values.get("trace", "off")
    return "" if found == "off" else str(found)
