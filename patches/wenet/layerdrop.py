"""Stochastic depth of branchformer and e_branchformer: every rank skips the same layers, or none does.

Up to 3.0.1 each layer draws for itself; from 3.1.0 on ``LayerDropModuleList`` draws for all of its layers when it is
iterated over, and branchformer's layers for their attention branch. All of it comes from torch's global CPU generator,
whose seed is the same on every rank (777) until a dynamic chunk mask, whose draws depend on the length of the batch, or
a batch that one rank skips sets the ranks apart.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Optional

from ddpfix.layerdrop import cover, everywhere
from ddpfix.patching.site import PatchError, Site

from ..common import espnet

_RATE = "stochastic_depth_rate"


def sync(site: Site, module: ModuleType, owner: Any) -> None:
    """Rank-synchronous decisions in the training forwards of wrapped models."""
    everywhere.put(site, owner, espnet.share)
    everywhere.in_models(site, espnet.share)


def off(site: Site, module: ModuleType, owner: Any) -> None:
    """No layer is skipped, and none is scaled, whatever rate a config or a module holds."""
    silent: Optional[type] = None
    if cover.drawing_method(owner) is not None:
        everywhere.put(site, owner, everywhere.never_skipping)
        silent = owner
    if (
        "forward" in vars(owner)
        and cover.drawing_method(owner) != "forward"
        and _RATE in owner.forward.__code__.co_names
    ):
        # What is left of a rate in a layer of 3.1.0 and later: its output is scaled up for the steps in which it rests.
        cover.never_skip(site, owner, "forward", (_RATE,))
        silent = owner
    if silent is None:
        raise PatchError(f"{owner.__qualname__} has no rate any more")
