"""A rank that fails tells all ranks why, wherever there is a process group; :mod:`ddpfix.monitor.sentinel` has how."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddpfix.patching.site import Site

from ..pipeline.step_count import Clocks
from .watched import follow

if TYPE_CHECKING:
    from ddpfix.monitor.watch import Rank, Watch

_PLACE = "failures"


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    """Have the steps of models counted."""
    site.keep(Clocks).follow(site, owner, _PLACE)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    follow(site, module, _PLACE, _sentinel)


def _sentinel(store: Any, here: Rank) -> Watch:
    from ddpfix.monitor.sentinel import Sentinel

    return Sentinel(store, here)
