"""The policy for uneven data that a toolkit follows: not every toolkit has every one."""

from __future__ import annotations

from ddpfix import log
from ddpfix.patching.site import Site


def policy(site: Site, toolkit: str) -> str:
    """The value of the setting ``uneven``, or the one of this toolkit that comes nearest to it.

    Args:
        site: the site of the patch, which has the matrix's replacements for values that its toolkit does not have.
        toolkit: the toolkit's name, for the line that says that another value is taken. Nothing is logged where the
            user chose no value.
    """
    wanted: str = site.settings["uneven"]
    taken = site.instead.get(wanted, wanted)
    if taken != wanted and "uneven" in getattr(site.settings, "sources", ()):
        log.info(f"{toolkit} has no uneven={wanted}: it does the nearest to it, uneven={taken}")
    return taken
