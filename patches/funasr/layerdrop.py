"""Stochastic depth (Huang et al., arXiv 1603.09382): every rank skips the same layers, or none does.

A conformer or branchformer layer draws for itself, and branchformer for its attention branch as well;
``MultiSequential`` draws for all of its layers at once and serves e_branchformer. FunASR's other encoder layers have
the same lines, but no encoder passes a rate on; user code may, so what a model has is looked at when it is wrapped.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop import everywhere
from ddpfix.patching.site import Site

from ..common import espnet


def put(site: Site, module: ModuleType, owner: Any) -> None:
    """Rank-synchronous decisions in the training forwards of wrapped models; or no layer is skipped."""
    everywhere.put(site, owner, espnet.share)


def put_at_wrap(site: Site, module: ModuleType, owner: Any) -> None:
    """The same for layers of other classes, which are found when a model is wrapped."""
    everywhere.in_models(site, espnet.share)
