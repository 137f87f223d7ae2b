"""Stochastic depth (Huang et al., arXiv 1603.09382): every rank skips the same layers, or none does.

A conformer or branchformer layer draws for itself, and branchformer for its attention branch as well;
``MultiSequential`` draws for all of its layers at once and serves e_branchformer. FunASR's other encoder layers have
the same lines, but no encoder passes a rate on; user code may, so what a model has is looked at when it is wrapped.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop import cover, everywhere
from ddpfix.patching.site import Site

from ..common import espnet


def sync(site: Site, module: ModuleType, owner: Any) -> bool:
    """Rank-synchronous decisions in the training forwards of wrapped models."""
    return _everywhere(site, module, owner, espnet.share)


def off(site: Site, module: ModuleType, owner: Any) -> bool:
    """No layer is skipped, and none is scaled, whatever rate a config or a module holds."""
    return _everywhere(site, module, owner, cover.silence)


def _everywhere(site: Site, module: ModuleType, owner: Any, how: everywhere.How) -> bool:
    if module.__name__.startswith("torch."):
        everywhere.in_models(site, how)
        return False
    everywhere.put(site, owner, how)
    return True
