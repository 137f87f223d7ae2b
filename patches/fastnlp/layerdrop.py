"""LayerDrop of fastNLP's own BART and CPT (1.0.x): every rank skips the same layers, or none does.

They are those of transformers 4.11 and draw from Python's global generator, which rich consumes on rank 0 when fastNLP
logs: not even a common seed keeps ranks together. What draws, and how, is read from the code, as for transformers.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix.layerdrop import code_copy, everywhere
from ddpfix.patching.site import Site

_TRAITS = code_copy.Traits(skipped_output=(None, None))
_share = everywhere.sharing(_TRAITS)


def put(site: Site, module: ModuleType, owner: Any) -> None:
    """Rank-synchronous decisions in the training forwards of wrapped models; or no layer is skipped."""
    everywhere.in_module(site, module, _share)


def put_at_wrap(site: Site, module: ModuleType, owner: Any) -> None:
    """The same for classes that no module of the toolkit defines: they are found when a model is wrapped."""
    everywhere.in_models(site, _share)
