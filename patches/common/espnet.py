"""Stochastic depth (Huang et al., arXiv 1603.09382) of encoders with layers copied from ESPnet.

A layer draws for itself (branchformer's also for its attention branch), or a list or stack of layers draws for all of
them at once.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from ddpfix.layerdrop import cover, everywhere
from ddpfix.patching.site import Site

_BRANCH = "attn_branch_drop_rate"


def share(site: Site, owner: type, examined: bool) -> None:
    """Have all ranks skip the same layers in the training forwards of wrapped models, or none with ``off``."""
    everywhere.share(site, owner, examined, rate=_rate_of(owner))


def _rate_of(owner: type) -> Optional[Callable[[Any], float]]:
    """Return a function that gives a layer's rate in force, if the forward reads a branch's rate; None otherwise."""
    names = [path[-1] for path in cover.rate_paths(owner, cover.drawing_method(owner) or "")]
    if _BRANCH not in names:
        return None
    others = [name for name in names if name != _BRANCH]

    def rate(layer: Any) -> float:
        # The attention branch is dropped only where a learned average joins it with the other one.
        joined = layer.use_two_branches and layer.merge_method == "learned_ave"
        own = [float(getattr(layer, name)) for name in others]
        return max([*own, float(getattr(layer, _BRANCH)) if joined else 0.0])

    return rate
