"""Stochastic depth of branchformer and e_branchformer: every rank skips the same layers, or none does.

Up to 3.0.1 each layer draws for itself; from 3.1.0 on ``LayerDropModuleList`` draws for all of its layers when it is
iterated over, and branchformer's layers for their attention branch. All of it comes from torch's global CPU generator,
whose seed is the same on every rank (777) until a dynamic chunk mask, whose draws depend on the length of the batch, or
a batch that one rank skips sets the ranks apart.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop import cover, everywhere
from ddpfix.patching.site import Site

from ..common import espnet

_RATE = "stochastic_depth_rate"


def put(site: Site, module: ModuleType, owner: Any) -> None:
    """Rank-synchronous decisions in the training forwards of wrapped models; or none is skipped, and none scaled."""
    everywhere.put(site, owner, espnet.share)
    everywhere.in_models(site, espnet.share)
    put_unscaled(site, module, owner)


def put_unscaled(site: Site, module: ModuleType, owner: Any) -> None:
    """Have layers of 3.1.0 and later, which their list skips, run as at rate 0 where none is skipped.

    Such a layer scales its output up for the steps in which it rests.
    """
    forward = vars(owner).get("forward")
    scales = forward is not None and _RATE in forward.__code__.co_names and cover.drawing_method(owner) != "forward"
    if everywhere.is_off(site) and scales:
        cover.never_skip(site, owner, "forward", (_RATE,))
