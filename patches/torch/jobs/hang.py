"""A job that hangs says which rank is late, wherever there is a process group; :mod:`ddpfix.ranks.hang` has how."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

from ddpfix.patching.site import Site

from ..pipeline.process_group import DuringGroup, ProcessGroup
from ..pipeline.step_count import Clocks

if TYPE_CHECKING:
    from ddpfix.ranks.hang.monitor import Monitor


class Monitored(DuringGroup):
    """The watch of one activation."""

    place = "hang"

    def __init__(self, site: Site) -> None:
        self._site = site
        self._monitor: Optional[Monitor] = None

    def make(self, store: Any, rank: int, size: int) -> None:
        self._monitor = _monitor(self._site, self._site.keep(Clocks), store, rank, size)

    def exits(self) -> None:
        self.end("ended")

    def end(self, how: str) -> None:
        watch, self._monitor = self._monitor, None
        if watch is not None:
            watch.end(how)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Monitor from when the process group comes up, or at once where it is up already."""
    if site.settings["hang"] != "off":
        site.keep(ProcessGroup).follow(site, module, Monitored(site))


def _monitor(site: Site, clocks: Clocks, store: Any, rank: int, size: int) -> Monitor:
    # Not at the head of this file: a process without a group needs none of it.
    from ddpfix.ranks.hang.monitor import Limits, Monitor

    limits = Limits(*_seconds(site))
    return Monitor(store, rank, size, clocks.step, limits, _folder(site), clocks.micro, clocks.work)


def _seconds(site: Site) -> Any:
    after = site.settings["hang_exit"]
    return float(site.settings["hang"]), None if after == "off" else float(after)


def _folder(site: Site) -> str:
    """Return the user's own folder for what ddpfix writes, if there is such a setting."""
    found = site.settings.values.get("trace", "off")
    return "" if found == "off" else str(found)
