"""A job that hangs says which rank is late, wherever there is a process group; :mod:`ddpfix.monitor.hang` has how."""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Optional

from torch import distributed
from torch.distributed import distributed_c10d

from ddpfix.patching.dynamo import skip_module
from ddpfix.patching.site import Site

from ..pipeline.process_group import DuringGroup, ProcessGroup
from ..pipeline.step_count import Clocks

if TYPE_CHECKING:
    from ddpfix.groups.called import CallCounts
    from ddpfix.monitor.hang import Monitor


class Monitored(DuringGroup):
    """The watch of one activation."""

    place = "hang"

    def __init__(self, site: Site) -> None:
        self._site = site
        self._monitor: Optional[Monitor] = None
        self._calls: Optional[CallCounts] = None

    def make(self, store: Any, rank: int, size: int) -> None:
        # Not at the head of this file: a process without a group needs none of it.
        from ddpfix.monitor.hang import Limits, Monitor

        if self._calls is None:
            self._calls = _count_calls(self._site)
        self._calls.begin(size, distributed.ProcessGroup)
        clocks, limits = self._site.keep(Clocks), Limits(*_seconds(self._site))
        watched = clocks.micro, clocks.work, self._calls.read
        self._monitor = Monitor(store, rank, size, clocks.step, limits, _folder(self._site), *watched)

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


def _count_calls(site: Site) -> CallCounts:
    """Have the collectives counted that the program itself calls, by line."""
    from ddpfix.groups import called

    counts = site.keep(called.CallCounts)
    skip_module(called)
    if isinstance(vars(distributed_c10d).get(called.BEGINS), FunctionType):
        site.wrap_hot(distributed_c10d, called.BEGINS, counts.counting)
    return counts


def _seconds(site: Site) -> Any:
    after = site.settings["hang_exit"]
    return float(site.settings["hang"]), None if after == "off" else float(after)


def _folder(site: Site) -> str:
    """Return the user's own folder for what ddpfix writes, if there is such a setting."""
    found = site.settings.values.get("trace", "off")
    return "" if found == "off" else str(found)
