"""A job that hangs says which rank is late, wherever there is a process group; :mod:`ddpfix.monitor.hang` has how."""

from __future__ import annotations

import functools
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import distributed
from torch.distributed import distributed_c10d

from ddpfix.patching.dynamo import skip_module
from ddpfix.patching.site import Site

from .failures import follow

if TYPE_CHECKING:
    from ddpfix.groups.calls import CallCounts
    from ddpfix.monitor.watch import Rank, Watch


def group(site: Site, module: ModuleType, owner: Any) -> None:
    if site.settings["hang"] == "off":
        return
    count_calls = functools.lru_cache(maxsize=None)(functools.partial(_count_calls, site))

    def monitor(store: Any, here: Rank) -> Watch:
        from ddpfix.monitor.hang import Monitor

        count_calls().begin(here.size, distributed.ProcessGroup)
        after, trace = site.settings["hang_exit"], site.settings.values.get("trace", "off")
        limits = float(site.settings["hang"]), None if after == "off" else float(after)
        # In the user's own folder for what ddpfix writes, if there is such a setting.
        return Monitor(store, here, *limits, "" if trace == "off" else str(trace))

    follow(site, module, "hang", monitor)


def _count_calls(site: Site) -> CallCounts:
    """Have the collectives counted that the program itself calls, by line."""
    from ddpfix.groups import calls

    counts = site.keep(calls.CallCounts)
    skip_module(calls)
    if isinstance(vars(distributed_c10d).get(calls.BEGINS), FunctionType):
        site.wrap_hot(distributed_c10d, calls.BEGINS, counts.counting)
    return counts
