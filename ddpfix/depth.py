"""Stochastic depth (Huang et al., arXiv 1603.09382) of encoders that ESPnet's layers were copied into: FunASR, WeNet.

A layer draws for itself, and branchformer's for its attention branch as well; or a list or stack of layers draws for
all of them at once.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from ddpfix import draws, log
from ddpfix.registry import PatchError, Site

_BRANCH = "attn_branch_drop_rate"
Put = Callable[[Site, type], None]


def share(site: Site, owner: type) -> None:
    """Have all ranks skip the same layers in the training forwards of wrapped models."""
    draws.cover(site, owner, draws.shared_call, rate=_rate_of(owner))


def put(site: Site, owner: Any, how: Put) -> None:
    """Change a class whose method draws, once.

    Raises:
        PatchError: it does not draw.
    """
    if draws.drawing_method(owner) is None:
        raise PatchError(f"{owner.__qualname__} no longer draws for its layers")
    if owner not in draws.COVERED:
        how(site, owner)


def put_all(site: Site, model: Any, how: Put) -> None:
    """Change the classes in a model that draw and are not covered yet: subclasses of a user's own are among them."""
    for owner in list(_drawing(model)):
        try:
            how(site, owner)
        except PatchError as error:
            log.warning(f"{owner.__module__}.{owner.__qualname__} skips layers, and ranks may disagree: {error}")


def _drawing(model: Any) -> Iterator[type]:
    levels: Dict[type, Tuple[()]] = {level: () for part in model.modules() for level in type(part).__mro__}
    for level in levels:
        if level not in draws.COVERED and draws.drawing_method(level) is not None:
            yield level


def _rate_of(owner: type) -> Optional[Callable[[Any], float]]:
    """The rate in force, where a branch's rate is one of those that are read: it is not in force in every layer."""
    names = [path[-1] for path in draws.rate_paths(vars(owner)[draws.drawing_method(owner) or ""])]
    if _BRANCH not in names:
        return None
    others = [name for name in names if name != _BRANCH]

    def rate(layer: Any) -> float:
        # The attention branch is dropped only where a learned average joins it with the other one.
        joined = layer.use_two_branches and layer.merge_method == "learned_ave"
        own = [float(getattr(layer, name)) for name in others]
        return max([*own, float(getattr(layer, _BRANCH)) if joined else 0.0])

    return rate
