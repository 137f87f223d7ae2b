"""The stages that learn whether the replicas of a model stay the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.patching.site import Site

from ..pipeline import ddp
from ..pipeline.end_of_run import AtEnd
from ..pipeline.optimizer_hooks import Steps
from ..pipeline.process_group import ProcessGroup
from ..pipeline.step_count import Clocks
from .divergence import Drift
from .unaveraged import Unaveraged


class AtEndOfReplicas(AtEnd):
    """Says what differs, and which models were never averaged."""

    place = "unaveraged"


def models(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stages in."""
    every = int(site.settings["drift_steps"])
    drift = Drift(site.keep(Steps), str(site.settings["drift"]), every)
    unaveraged = site.keep(Unaveraged)
    unaveraged.begin(site.keep(Steps), every)
    site.keep(Clocks).follow(site, owner, drift.place)
    site.keep(AtEndOfReplicas).speakers[:] = [drift, unaveraged]
    for stage in (drift, unaveraged):
        ddp.put(site, owner, stage)
        site.at_undo(stage.end)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Say at the end of the process group what differs, and which models were never averaged."""
    site.keep(ProcessGroup).follow(site, module, site.keep(AtEndOfReplicas))
