"""Stochastic depth (Huang et al., arXiv 1603.09382): every rank skips the same layers, or none does.

A conformer or branchformer layer draws for itself, and branchformer for its attention branch as well;
``MultiSequential`` draws for all of its layers at once and serves e_branchformer. FunASR's other encoder layers have
the same lines, but no encoder passes a rate on; user code may, so what a model has is looked at when it is wrapped.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from ddpfix import draws, log, wrapping
from ddpfix.registry import PatchError, Site


def sync(site: Site, module: ModuleType, owner: Any) -> bool:
    """Rank-synchronous decisions in the training forwards of wrapped models."""
    return _everywhere(site, module, owner, _shared)


def off(site: Site, module: ModuleType, owner: Any) -> bool:
    """No layer is skipped, and none is scaled, whatever rate a config or a module holds."""
    return _everywhere(site, module, owner, draws.silence)


def _shared(site: Site, owner: type) -> None:
    draws.cover(site, owner, draws.shared_call, rate=_rate_of(owner))


def _rate_of(owner: type) -> Optional[Callable[[Any], float]]:
    return _branchformer_rate if owner.__name__ == "BranchformerEncoderLayer" else None


def _branchformer_rate(layer: Any) -> float:
    """The attention branch is dropped only where a learned average joins it with the other one."""
    joined = layer.use_two_branches and layer.merge_method == "learned_ave"
    return float(max(layer.stochastic_depth_rate, layer.attn_branch_drop_rate if joined else 0.0))


def _everywhere(site: Site, module: ModuleType, owner: Any, put: Callable[[Site, type], None]) -> bool:
    if module.__name__.startswith("torch."):
        wrapping.before(site, lambda model: _put_all(site, model, put))
        return False
    if draws.drawing_method(owner) is None:
        raise PatchError(f"{owner.__qualname__}.forward no longer draws for its layers")
    if owner not in draws.COVERED:
        put(site, owner)
    return True


def _drawing(model: Any) -> Iterator[type]:
    """The classes in a model whose own forward draws: FunASR's other layers, and subclasses of a user's."""
    levels: Dict[type, Tuple[()]] = {level: () for part in model.modules() for level in type(part).__mro__}
    for level in levels:
        if level not in draws.COVERED and draws.drawing_method(level) is not None:
            yield level


def _put_all(site: Site, model: Any, put: Callable[[Site, type], None]) -> None:
    for owner in _drawing(model):
        try:
            put(site, owner)
        except PatchError as error:
            log.warning(f"{owner.__module__}.{owner.__qualname__} skips layers, and ranks may disagree: {error}")
