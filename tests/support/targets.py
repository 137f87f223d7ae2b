"""Compares the changes of a patch according to the matrix with the changes that it has made in the real toolkit."""

from __future__ import annotations

import re
import sys
from functools import reduce
from typing import List

from ddpfix import engine
from ddpfix.matrix.model import Patch, Row
from ddpfix.patching.site import Site


def differences(toolkit: str) -> List[str]:
    """Places that patches of a toolkit changed and the matrix does not list, and the other way round.

    Args:
        toolkit: its name in the matrix. The modules that its patches wait for have been imported.
    """
    active = engine.current()
    assert active is not None, "ddpfix is not active"
    found: List[str] = []
    for decision in active.decisions:
        site = active.sites.get(decision.patch)
        if decision.toolkit == toolkit and decision.row is not None and site is not None:
            found += _of_patch(active.matrix.patches[decision.patch], decision.row, site)
    return found


def _of_patch(patch: Patch, row: Row, site: Site) -> List[str]:
    shared = [record.place for part in site.parts for record in part.in_force()]
    own = [record.place for record in site.records if not record.copy]
    listed = [str(target) for target in row.targets] + [place for place in (*patch.also, *row.also) if " " not in place]
    unlisted = [place for place in own if not any(_matches(place, known) for known in listed)]
    done = [*own, *shared, *site.registered]
    idle = [place for place in listed if _is_there(place) and not any(_matches(other, place) for other in done)]
    if any(" " in at for at in site.registered):
        # It acts at a place that is described in words, and its targets are where it registers.
        idle = []
    return [
        *(f"{patch.id} changes {place}, which the matrix does not list" for place in unlisted),
        *(f"{patch.id} does nothing at {place}, which the matrix lists" for place in idle),
    ]


def _matches(place: str, listed: str) -> bool:
    return re.match(re.escape(listed).replace(r"\*", ".*") + "$", place) is not None


def _is_there(place: str) -> bool:
    """Whether a place without ``*`` exists in this environment."""
    module, _, path = place.partition(":")
    if "*" in place or module not in sys.modules:
        return False
    try:
        reduce(getattr, path.split("."), sys.modules[module])
    except AttributeError:
        return False
    return True
