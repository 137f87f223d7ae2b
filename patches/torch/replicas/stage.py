"""The stages that learn whether the replicas of a model stay the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any, List, Union

from ddpfix.patching.site import Site
from ddpfix.ranks.store import lowest_rank
from ddpfix.system import System

from ..pipeline import ddp
from ..pipeline.optimizer_hooks import Steps
from ..pipeline.process_group import Follower, ProcessGroup
from ..pipeline.step_count import Clocks
from .divergence import Drift
from .unaveraged import Unaveraged


class AtEnd(Follower):
    """Says what differs, and which models were never averaged, when the process group or the process ends.

    Attributes:
        speakers: who says it, in their order.
    """

    place = "unaveraged"

    def __init__(self) -> None:
        self.speakers: List[Union[Drift, Unaveraged]] = []
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


def models(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stages in."""
    every = int(site.settings["drift_steps"])
    drift = Drift(site.keep(Steps), str(site.settings["drift"]), every)
    unaveraged = site.keep(Unaveraged)
    unaveraged.begin(site.keep(Steps), every)
    site.keep(Clocks).follow(site, owner, drift.place)
    site.keep(AtEnd).speakers[:] = [drift, unaveraged]
    for stage in (drift, unaveraged):
        ddp.put(site, owner, stage)
        site.at_undo(stage.end)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Say at the end of the process group what differs, and which models were never averaged."""
    site.keep(ProcessGroup).follow(site, module, site.keep(AtEnd))
