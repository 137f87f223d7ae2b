"""Which policy for uneven data a toolkit follows: not every toolkit has every one."""

from __future__ import annotations

from ddpfix import log
from ddpfix.patching.site import Site


def policy(site: Site, toolkit: str) -> str:
    """The value of the setting ``uneven``, or the one of this toolkit that comes nearest to it.

    Args:
        site: the patch that asks, which knows what the matrix says about values that its toolkit does not have.
        toolkit: the toolkit's name, for the line that says that another value is taken. Nothing is said where nobody
            chose one.
    """
    wanted: str = site.settings["uneven"]
    taken = site.instead.get(wanted, wanted)
    if taken != wanted and "uneven" in getattr(site.settings, "sources", ()):
        log.info(f"{toolkit} has no uneven={wanted}: it does the nearest to it, uneven={taken}")
    return taken
