"""A rank that fails tells all ranks why, wherever there is a process group; :mod:`ddpfix.monitor.sentinel` has how."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional

from ddpfix.patching.site import Site
from ddpfix.rules.facts import TrainingProgress

from ..pipeline.process_group import DuringGroup, ProcessGroup
from ..pipeline.step_count import Clocks

if TYPE_CHECKING:
    from ddpfix.monitor.sentinel import Sentinel


class Reporter(DuringGroup):
    """Tells the other ranks why this one fails, and this one why another one did."""

    place = "failures"

    def __init__(self, site: Site, step: Callable[[], Optional[int]], work: Callable[[], TrainingProgress]) -> None:
        self._site, self._step, self._work = site, step, work
        self._sentinel: Optional[Sentinel] = None

    def make(self, store: Any, rank: int, size: int) -> None:
        # Not at the head of this file: a process without a group needs none of it.
        from ddpfix.groups.called import CallCounts
        from ddpfix.monitor import sys_exit
        from ddpfix.monitor.sentinel import Sentinel

        sys_exit.watch()
        called = self._site.keep(CallCounts).read
        self._sentinel = Sentinel(store, rank, size, self._step, self._work, called)

    def exits(self) -> None:
        if self._sentinel is not None:
            self._sentinel.leave()

    def end(self, how: str) -> None:
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            sentinel.end(how)
            _forget()

    def undone(self) -> None:
        super().undone()
        _forget()


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    """Have the steps of models counted."""
    site.keep(Clocks).follow(site, owner, Reporter.place)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Begin when the process group comes up, or at once where it is up already."""
    clocks = site.keep(Clocks)
    site.keep(ProcessGroup).follow(site, module, Reporter(site, clocks.step, clocks.work))


def _forget() -> None:
    sys_exit: Any = sys.modules.get("ddpfix.monitor.sys_exit")
    if sys_exit is not None:
        sys_exit.forget()
