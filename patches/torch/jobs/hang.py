"""A job that hangs says which rank is late, wherever there is a process group; :mod:`ddpfix.monitor.hang` has how."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddpfix.patching.site import Site

from .failures import follow

if TYPE_CHECKING:
    from ddpfix.monitor.watch import Rank, Watch


def group(site: Site, module: ModuleType, owner: Any) -> None:
    if site.settings["hang"] == "off":
        return

    def monitor(store: Any, here: Rank) -> Watch:
        from ddpfix.monitor.hang import Monitor

        after, trace = site.settings["hang_exit"], site.settings.values.get("trace", "off")
        limits = float(site.settings["hang"]), None if after == "off" else float(after)
        # In the user's own folder for what ddpfix writes, if there is such a setting.
        return Monitor(store, here, *limits, "" if trace == "off" else str(trace))

    follow(site, module, "hang", monitor)
