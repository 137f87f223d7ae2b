"""Calls past the wrapper in programs that belong to no toolkit: routed where the user asks for it.

A program may mean such a call to stay on its rank: it adapts a model by itself for a while, or averages gradients in
a way of its own. So nothing is changed, and nothing said, by default.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Optional

from ddpfix.patching.site import Site

from ...common import bypass
from ..internals import process_groups
from ..internals.wrapper import inner
from ..pipeline import ddp


def route(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in (``DDPFIX_BYPASS=route``)."""
    ddp.put(site, owner, Bypass(site))


class Bypass(ddp.Stage):
    """Has training forwards of wrapped models go through their wrappers."""

    place = "bypass"

    def __init__(self, site: Site) -> None:
        self._site = site

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        ranks = process_groups.ranks_of(model.wrapper.process_group)
        # Perhaps not all ranks have a copy.
        if call is not None and len(ranks) > 1:
            kind = type(inner(model.wrapper)).__name__
            bypass.route(self._site, model.wrapper, ranks, functools.partial(_told, kind))


def _told(kind: str, where: str) -> str:
    return (
        f"{where} calls a {kind} past its DistributedDataParallel wrapper: ddpfix sends calls in training forwards"
        " through the wrapper, so that DDP averages their gradients"
    )
